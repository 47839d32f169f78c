"""Every plugin keeps the contract of its spec; networks that do not are caught."""

import inspect
from dataclasses import fields, replace
from pathlib import Path

import pytest

import llmc.plugins
from llmc.builders.network import build_network
from llmc.errors import UnsupportedError
from llmc.plugins import PLUGINS, graph
from llmc.plugins.graph import Network
from llmc.runtime.batch import Batch
from tests.plugins.tiny_llama import TinyLlama


@pytest.mark.parametrize("name", PLUGINS)
def test_reference_takes_what_the_spec_declares(name: str) -> None:
    spec = graph.spec(name)
    assert spec.name == name
    parameters = inspect.signature(graph.part(name, "reference").evaluate).parameters.values()
    keywords = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    declared = {*spec.attributes, *spec.weights, *spec.reads_batch}
    if spec.uses_kv_cache:
        declared.add("kv_cache")
    assert keywords.keys() == declared
    for role, weight in spec.weights.items():
        assert (keywords[role].default is None) == weight.optional
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert len(positional) == max(1, len(spec.inputs))


@pytest.mark.parametrize("name", PLUGINS)
def test_spec_names_fields_of_the_batch_and_its_own_attributes(name: str) -> None:
    spec = graph.spec(name)
    assert set(spec.reads_batch) <= {field.name for field in fields(Batch)}
    symbols = {"T", "L", "1", "2", *spec.attributes}
    shapes = [*spec.inputs.values(), *spec.outputs.values()]
    shapes += [role.shape for role in spec.weights.values()]
    for shape in shapes:
        for extent in shape:
            words = extent.replace("(", "").replace(")", "").replace("*", " ").replace("+", " ")
            assert set(words.split()) <= symbols, extent


def test_every_folder_with_a_spec_is_in_the_table() -> None:
    room = Path(llmc.plugins.__file__).parent
    assert {path.parent.name for path in room.glob("*/spec.py")} == set(PLUGINS.values())


def test_unknown_plugin_names_the_closest() -> None:
    with pytest.raises(UnsupportedError, match="unknown plugin 'atention'") as caught:
        graph.spec("atention")
    assert caught.value.hint == "did you mean 'attention'?"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attrs": {}}, "attrs"),
        ({"attrs": {"hidden_size": 64, "epsilon": 1}}, "epsilon: 1"),
        ({"weights": {}}, "no weight"),
        ({"inputs": ("nowhere",)}, "reads nowhere before it is written"),
        ({"inputs": ()}, "inputs"),
        ({"outputs": ("token_ids",)}, "writes token_ids a second time"),
    ],
)
def test_check_finds_what_is_wrong(change: dict[str, object], message: str) -> None:
    network = build_network(TinyLlama.make().config(), 0)
    at = next(i for i, call in enumerate(network.ops) if call.plugin == "rms_norm")
    broken = replace(network.ops[at], **change)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=message):
        graph.check(replace(network, ops=(*network.ops[:at], broken, *network.ops[at + 1 :])))


def test_check_wants_names_once_and_outputs_written() -> None:
    network = build_network(TinyLlama.make().config(), 0)
    graph.check(network)
    with pytest.raises(AssertionError, match="two calls of this name"):
        graph.check(replace(network, ops=(network.ops[0], *network.ops)))
    with pytest.raises(AssertionError, match="output logits is never written"):
        graph.check(Network(ops=network.ops[:3], inputs=network.inputs, outputs=network.outputs))
