"""TensorRT lowering of `moe`: every expert sees every token, as one MLP that is wide.

TensorRT for RTX has no layer of experts for the GPUs it builds for. So the experts of a run, as
many as make a weight of MAX_ELEMENTS, stand beside each other: the first product has the columns of
them all, and what the second reads is multiplied with the token's weights first, which are 0 where
an expert was not chosen. Its sum over the columns then is the sum over the experts. How the second
product of a quantized run is written depends on its scales (plugins/moe/tensorrt_products.py).

Legend: B slots, S tokens of each, E experts of the rank, n of a run, K choices of a token,
H hidden_size, I intermediate_size.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from llmc.plugins.graph import OpCall
from llmc.plugins.moe.stored import expert_reasons
from llmc.plugins.moe.tensorrt_products import APART, Run, first_product, second_product
from llmc.plugins.tensorrt_activations import activate
from llmc.plugins.tensorrt_lowering import Lowering, Tensor

MAX_ELEMENTS = 1 << 30
"""Of one weight. TensorRT numbers the elements of a tensor with 31 bits."""


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    return expert_reasons(call, _GATES)


def lower(call: OpCall, lowering: Lowering) -> None:
    layers = lowering.layers
    x, weights = lowering.value(call.inputs[0]), _weights_of_all(call, lowering)
    y = None
    for experts in runs(call):
        run = Run(call=call, lowering=lowering, experts=experts)
        part = _run(run, x, layers.columns(weights, experts.start, len(experts)))
        y = part if y is None else layers.binary("SUM", y, part)
    lowering.set_value(call.outputs[0], y)


def runs(call: OpCall) -> list[range]:
    """Return the experts of each run: equally many, as many as a weight has room for."""
    attrs: dict[str, Any] = call.attrs
    num_experts: int = attrs["num_experts"]
    most = MAX_ELEMENTS // (2 * attrs["intermediate_size"] * attrs["hidden_size"])
    size = max(
        count
        for count in range(1, num_experts + 1)
        if num_experts % count == 0 and count <= max(most, 1)
    )
    return [range(start, start + size) for start in range(0, num_experts, size)]


def num_second_products(call: OpCall) -> int:
    """Return how many products `proj` is: one of each run, or of each expert."""
    experts = runs(call)
    return sum(len(run) for run in experts) if call.attrs["quant"] in APART else len(experts)


def _weights_of_all(call: OpCall, lowering: Lowering) -> Tensor:
    """Return [B, S, E], the weight of each of the rank's experts or 0, of routing [B, S, 2 K]."""
    attrs: dict[str, Any] = call.attrs
    layers, top_k = lowering.layers, attrs["top_k"]
    routing = lowering.value(call.inputs[1])
    chosen, weights = (
        layers.reshape(layers.columns(routing, start, top_k), (0, 0, top_k, 1))
        for start in (0, top_k)
    )
    first, count = attrs["first_expert"], attrs["num_experts"]
    numbers = layers.small(np.arange(first, first + count).reshape(1, 1, 1, -1), "float32")
    is_chosen = layers.binary("EQUAL", layers.cast(chosen, "float32"), numbers)
    spread = layers.select(is_chosen, weights, layers.like(0.0, weights))
    return layers.reshape(layers.reduce("SUM", spread, 2), (0, 0, count))


def _run(run: Run, x: Tensor, weights: Tensor) -> Tensor:
    """Return what the run's experts add to the output, [B, S, H]; weights [B, S, n]."""
    layers, attrs = run.lowering.layers, run.attrs
    columns = len(run.experts) * attrs["intermediate_size"]
    fc = run.add_first_bias(first_product(run, x))
    up, gate = (layers.columns(fc, start, columns) for start in (0, columns))
    gated = _GATES[attrs["activation"]](run.lowering, gate, up, attrs)
    return run.add_second_bias(second_product(run, gated, weights), weights)


def _plain(lowering: Lowering, gate: Tensor, up: Tensor, attrs: dict[str, Any]) -> Tensor:
    return lowering.layers.binary("PROD", activate(lowering, attrs["activation"], gate), up)


def _clamped_swiglu(lowering: Lowering, gate: Tensor, up: Tensor, attrs: dict[str, Any]) -> Tensor:
    layers, limit = lowering.layers, attrs["limit"]
    gate = layers.binary("MIN", gate, layers.like(limit, gate))
    up = layers.binary("MIN", up, layers.like(limit, up))
    up = layers.binary("MAX", up, layers.like(-limit, up))
    swish = layers.activation("SIGMOID", layers.scaled(gate, attrs["alpha"]))
    up = layers.binary("SUM", up, layers.like(1.0, up))
    return layers.binary("PROD", layers.binary("PROD", gate, swish), up)


_GATES: dict[str, Callable[[Lowering, Tensor, Tensor, dict[str, Any]], Tensor]] = {
    "silu": _plain,
    "gelu_tanh": _plain,
    "clamped_swiglu": _clamped_swiglu,
}
"""Activation of the spec → how gate and up become one."""
