"""Mistakes a lowering could make, planted one at a time: every one shows in the logits.

Some are planted in the finished INetworkDefinition, the others in our own network before it is
lowered. Each test would fail if the interpreter read less of a network than it computes.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.builders.network import build_network
from llmc.builders.targets import tensorrt_network
from llmc.builders.targets.tensorrt_network import LoweredNetwork
from llmc.errors import BuildError
from llmc.plugins.graph import Network, OpCall
from tests.builders.targets.tensorrt_networks import TOKENS, lower_tiny, read_tokens, trt
from tests.plugins.tiny_llama import TinyLlama

TOLERANCE = 2e-4
"""What the network without a fault keeps (test_tensorrt_stepping)."""


def layers_of(networks: list[LoweredNetwork], class_name: str, kind: str) -> Iterator[Any]:
    """Yield the layers of a kind in the first network, as their own class."""
    definition = networks[0].network
    for index in range(definition.num_layers):
        layer = definition.get_layer(index)
        if layer.type.name == kind:
            layer.__class__ = getattr(trt, class_name)
            yield layer


def align_upper_left(networks: list[LoweredNetwork]) -> None:
    for layer in layers_of(networks, "IAttentionOutputLayer", "ATTENTION_OUTPUT"):
        layer.attention.causal_kind = trt.CausalMaskKind.UPPER_LEFT


def forget_lengths(networks: list[LoweredNetwork]) -> None:
    for layer in layers_of(networks, "IAttentionOutputLayer", "ATTENTION_OUTPUT"):
        layer.attention.key_value_lengths = None


def interleave_rope(networks: list[LoweredNetwork]) -> None:
    for layer in layers_of(networks, "IRotaryEmbeddingLayer", "ROTARY_EMBEDDING"):
        layer.interleaved = True


def transpose_o_proj(networks: list[LoweredNetwork]) -> None:
    for layer in layers_of(networks, "IMatrixMultiplyLayer", "MATRIX_MULTIPLY"):
        if "attention.dense" in layer.name:
            layer.op1 = trt.MatrixOperation.NONE


def sum_not_mean(networks: list[LoweredNetwork]) -> None:
    for layer in layers_of(networks, "IReduceLayer", "REDUCE"):
        layer.op = trt.ReduceOperation.SUM


def write_one_place_late(networks: list[LoweredNetwork]) -> None:
    """The cache gets the token before at a token's place: the next step's write index is off."""
    for layer in layers_of(networks, "IKVCacheUpdateLayer", "KV_CACHE_UPDATE"):
        lengths = next(
            tensor
            for tensor in map(networks[0].network.get_input, range(networks[0].network.num_inputs))
            if tensor.name == "kv_lens"
        )
        layer.set_input(2, lengths)


DEFINITION_FAULTS = [
    align_upper_left,
    forget_lengths,
    interleave_rope,
    transpose_o_proj,
    sum_not_mean,
    write_one_place_late,
]


@pytest.mark.parametrize("plant", DEFINITION_FAULTS)
def test_a_fault_in_the_definition_shows(
    plant: Callable[[list[LoweredNetwork]], None], tmp_path: Path
) -> None:
    tiny = TinyLlama.make()
    networks = lower_tiny(tiny, tiny.config(), tmp_path)
    wanted = tiny.logits(TOKENS).numpy()
    assert np.abs(read_tokens(networks) - wanted).max() < TOLERANCE
    plant(networks)
    assert np.abs(read_tokens(networks) - wanted).max() > 1000 * TOLERANCE


def change(network: Network, edit: Callable[[OpCall], OpCall]) -> Network:
    return replace(network, ops=tuple(edit(call) for call in network.ops))


def without(network: Network, dropped: Callable[[OpCall], bool]) -> Network:
    """Leave calls out; who read such a call's output reads its last input."""
    renamed: dict[str, str] = {}
    ops = []
    for call in network.ops:
        call = replace(call, inputs=tuple(renamed.get(name, name) for name in call.inputs))
        if dropped(call):
            renamed[call.outputs[0]] = call.inputs[-1]
        else:
            ops.append(call)
    return replace(network, ops=tuple(ops))


def swap_gate_and_up(network: Network) -> Network:
    def edit(call: OpCall) -> OpCall:
        names = call.weights.get("weight", ())
        return replace(call, weights=call.weights | {"weight": names[::-1]})

    return change(network, edit)


def double_scale(network: Network) -> Network:
    def edit(call: OpCall) -> OpCall:
        if call.plugin != "attention":
            return call
        scale = call.attrs["scale"]
        assert isinstance(scale, float)
        return replace(call, attrs=call.attrs | {"scale": 2 * scale})

    return change(network, edit)


def drop_residual(network: Network) -> Network:
    return without(network, lambda call: call.name == "transformer.layers.2.attention.residual")


def drop_collective(network: Network) -> Network:
    return without(network, lambda call: call.name == "transformer.layers.2.mlp.proj.allreduce")


@pytest.mark.parametrize(
    ("fault", "tp"),
    [(swap_gate_and_up, 1), (double_scale, 1), (drop_residual, 1), (drop_collective, 2)],
)
def test_a_fault_in_the_network_shows(
    fault: Callable[[Network], Network], tp: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = TinyLlama.make()
    wanted = tiny.logits(TOKENS).numpy()
    right = lower_tiny(tiny, tiny.config(tp=tp), tmp_path / "right")
    assert np.abs(read_tokens(right) - wanted).max() < TOLERANCE
    monkeypatch.setattr(
        tensorrt_network, "build_network", lambda *given: fault(build_network(*given))
    )
    networks = lower_tiny(tiny, tiny.config(tp=tp), tmp_path / "wrong")
    assert np.abs(read_tokens(networks) - wanted).max() > 1000 * TOLERANCE


def slopes_of_the_first_heads(network: Network) -> Network:
    def edit(call: OpCall) -> OpCall:
        alibi = call.attrs.get("alibi")
        if not isinstance(alibi, dict):
            return call
        return replace(call, attrs=call.attrs | {"alibi": alibi | {"first_head": 0}})

    return change(network, edit)


def test_slopes_of_another_rank_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks are held to one, which test_tensorrt_families holds to transformers."""
    tiny = TinyLlama.make()
    arch = replace(tiny.arch, position_embedding_type="alibi", rotary_embedding_dim=0)
    one, two = (replace(tiny.config(tp=tp), arch=arch) for tp in (1, 2))
    wanted = read_tokens(lower_tiny(tiny, one, tmp_path / "one"))
    right = read_tokens(lower_tiny(tiny, two, tmp_path / "right"))
    assert np.abs(right - wanted).max() < TOLERANCE
    monkeypatch.setattr(
        tensorrt_network,
        "build_network",
        lambda *given: slopes_of_the_first_heads(build_network(*given)),
    )
    wrong = read_tokens(lower_tiny(tiny, two, tmp_path / "wrong"))
    assert np.abs(wrong - wanted).max() > 1000 * TOLERANCE


def test_a_collective_missing_on_one_rank_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for a rank that is already in the next one, or at the end."""
    tiny = TinyLlama.make()

    def build(config: Any, rank: int) -> Network:
        network = build_network(config, rank)
        return drop_collective(network) if rank == 1 else network

    monkeypatch.setattr(tensorrt_network, "build_network", build)
    networks = lower_tiny(tiny, tiny.config(tp=2), tmp_path)
    with pytest.raises(BuildError, match="ended while others wait|do not meet"):
        read_tokens(networks)
