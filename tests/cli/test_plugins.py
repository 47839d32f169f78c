"""`llmc plugins`: every op on every target, from the code."""

import json

import pytest

from llmc.plugins import PLUGINS, graph
from llmc.plugins.tensorrt_llm_options import op_options, plugin_options
from llmc.quant import FORMATS
from llmc.targets import TARGETS
from tests.cli.run import llmc


def test_every_op_on_every_target(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = llmc("plugins", "--json", capsys=capsys, monkeypatch=monkeypatch)
    found = {(one["op"], one["target"]): one for one in json.loads(done.stdout)}
    assert done.code == 0
    assert [*found] == [(op, target) for op in PLUGINS for target in TARGETS]
    assert all(found[op, "cpu"]["lowered"] for op in PLUGINS)
    linear = found["linear", "cpu"]
    assert linear["quantizations"].keys() == FORMATS.keys()
    assert found["linear", "tensorrt-rtx"]["quantizations"]["FP8"] == "89, 120, 121"
    assert found["linear", "tensorrt"]["quantizations"]["NVFP4"] == "100, 103, 110, 120, 121"
    assert found["linear", "tensorrt-llm"]["quantizations"]["FP8"] == "from 89"
    assert found["attention", "cpu"]["quantizations"].keys() == {"INT8", "FP8"}
    swiglu = found["gated_activation", "tensorrt-llm"]["options"]["gemm_swiglu_plugin"]
    assert swiglu == {
        "default": None,
        "values": ["fp8", "none"],
        "chosen_by_builder": False,
        "needs": {"fp8": ["FP8"]},
        "compute_capability": "on 90 only",
    }


@pytest.mark.parametrize("op", PLUGINS)
def test_options_of_an_op_are_those_of_plugin_config(op: str) -> None:
    options = op_options(op)
    assert options.items() <= plugin_options().items()
    for name, option in options.items():
        values = {option.default, *option.values, *([] if option.values else [True, False])}
        assert {*option.needs} <= values, name
        assert {algo for algos in option.needs.values() for algo in algos} <= {*FORMATS}, name
    if graph.spec(op).communicates:
        assert "nccl_plugin" in options


def test_the_text_has_a_section_for_each_op(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = llmc("plugins", capsys=capsys, monkeypatch=monkeypatch)
    assert [line for line in done.stdout.splitlines() if line[:1].isalpha()] == [*PLUGINS]
    assert "gemm_swiglu_plugin (on 90 only)" in done.stdout
