"""Mistakes that only a lowering of experts can make, planted one at a time: each shows."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from llmc.builders.convert import convert
from llmc.builders.network import build_network
from llmc.builders.targets import tensorrt_network
from llmc.builders.targets.tensorrt_stepping import SteppedNetwork, lower_ranks
from llmc.checkpoint import Checkpoint, Quantization
from llmc.log import NullProgress
from llmc.mapping import Mapping
from llmc.plugins.graph import Network
from llmc.plugins.moe import tensorrt_products
from tests.builders.families.tiny_families import prompt, write_case
from tests.builders.targets.tensorrt_networks import MAX_SEQ_LEN, TOOLKIT

TOKENS = 20
TOLERANCE = 1e-4
"""Of the logits' spread, what the network without a fault keeps (test_tensorrt_families)."""


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, list[int], Any]:
    """A checkpoint of two ranks with half of the experts each, tokens, transformers' logits."""
    directory, model = write_case(tmp_path_factory.mktemp("mixtral"), "mixtral")
    tokens = prompt(model.config.vocab_size)[:TOKENS]
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].numpy()
    output = tmp_path_factory.mktemp("checkpoint")
    convert(
        directory,
        output,
        dtype="float32",
        mapping=Mapping(tp_size=2, moe_ep_size=2),
        quantization=Quantization(),
        progress=NullProgress(),
        workers=1,
    )
    return Checkpoint.open(output), tokens, logits


def difference(mixtral: tuple[Checkpoint, list[int], Any]) -> float:
    """Return the largest difference to transformers' logits, of their spread."""
    checkpoint, tokens, wanted = mixtral
    networks = list(lower_ranks(TOOLKIT, checkpoint, max_seq_len=MAX_SEQ_LEN))
    stepped = SteppedNetwork(networks, mode="ideal")
    logits = stepped.read(tokens, num_context=TOKENS - 2)[:, : wanted.shape[1]]
    return float(np.abs(logits - wanted).max() / wanted.std())


def test_without_a_fault_it_is_the_model(mixtral: Any) -> None:
    assert difference(mixtral) < TOLERANCE


def test_gate_and_up_swapped_shows(mixtral: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    halves = tensorrt_products._halves

    def swapped(experts: list[Any]) -> Any:
        return np.concatenate(np.split(halves(experts), 2)[::-1])

    monkeypatch.setattr(tensorrt_products, "_halves", swapped)
    assert difference(mixtral) > 1000 * TOLERANCE


def unnormalized(network: Network) -> Network:
    return _changed(network, "moe_routing", renormalize=lambda _: False)


def one_choice_too_few(network: Network) -> Network:
    """As if the ranks numbered their experts from one."""
    return _changed(network, "moe", first_expert=lambda first: first + 1)


def _changed(network: Network, plugin: str, **edits: Callable[[Any], Any]) -> Network:
    ops = (
        replace(
            call, attrs=call.attrs | {key: edit(call.attrs[key]) for key, edit in edits.items()}
        )
        if call.plugin == plugin
        else call
        for call in network.ops
    )
    return replace(network, ops=tuple(ops))


@pytest.mark.parametrize("fault", [unnormalized, one_choice_too_few])
def test_a_fault_in_the_network_shows(
    mixtral: Any, fault: Callable[[Network], Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tensorrt_network, "build_network", lambda *given: fault(build_network(*given))
    )
    assert difference(mixtral) > 1000 * TOLERANCE
