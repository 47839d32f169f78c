"""TensorRT lowering of `moe_routing`: small layers in float32 around the one that sorts.

Legend: B slots, S tokens of each, E experts, G groups of them, g groups a token may use, K choices.
"""

from typing import Any

import numpy as np

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering, Tensor

_GROUP_SCORES = {"max": 1, "top2_sum": 2}
"""group_score → of how many of its experts a group's score is the sum."""

_MAX_EXPERTS = 256
"""Whole numbers up to here are exact in bfloat16, in which a choice is handed on."""


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    attrs: dict[str, Any] = call.attrs
    reasons = []
    for key, known in (("scoring", ("softmax", "sigmoid")), ("group_score", (*_GROUP_SCORES,))):
        if attrs[key] not in known:
            reasons.append(f"{call.name}: {key} {attrs[key]!r}, expected one of {', '.join(known)}")
    if attrs["num_experts"] > _MAX_EXPERTS:
        reasons.append(
            f"{call.name}: {attrs['num_experts']} experts, the tensorrt targets number at most"
            f" {_MAX_EXPERTS}"
        )
    return reasons


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    layers = lowering.layers
    logits = layers.cast(lowering.value(call.inputs[0]), "float32")
    softmax = attrs["scoring"] == "softmax"
    scores = layers.softmax(logits, 2) if softmax else layers.activation("SIGMOID", logits)
    choices = _corrected(call, lowering, scores)
    if attrs["top_groups"] < attrs["num_groups"]:
        choices = _within_groups(call, lowering, choices)
    # Of the scores themselves: what was chosen by may be more than them.
    _, experts = layers.largest(choices, attrs["top_k"])
    weights = layers.gather_each(scores, experts)
    if attrs["renormalize"]:
        total = layers.reduce("SUM", weights, 2)
        epsilon = attrs["renormalize_epsilon"]
        if epsilon:
            total = layers.binary("SUM", total, layers.like(epsilon, total))
        weights = layers.binary("DIV", weights, total)
    weights = layers.scaled(weights, attrs["scaling_factor"])
    routing = layers.concatenate([layers.cast(experts, "float32"), weights], 2)
    lowering.set_value(call.outputs[0], layers.cast(routing, lowering.dtype))


def _corrected(call: OpCall, lowering: Lowering, scores: Tensor) -> Tensor:
    if "correction_bias" not in call.weights:
        return scores
    names = call.weights["correction_bias"]
    shape = (1, 1, scores.shape[2])
    bias = lowering.weight(
        names[0],
        shape,
        "float32",
        lambda: lowering.read(names).astype(np.float32).reshape(shape),
    )
    return lowering.layers.binary("SUM", scores, bias)


def _within_groups(call: OpCall, lowering: Lowering, choices: Tensor) -> Tensor:
    """Return choices [B, S, E], those outside of a token's best groups as low as nothing else."""
    attrs: dict[str, Any] = call.attrs
    layers = lowering.layers
    num_groups, size = attrs["num_groups"], attrs["num_experts"] // attrs["num_groups"]
    grouped = layers.reshape(choices, (0, 0, num_groups, size))
    best, _ = layers.largest(grouped, min(_GROUP_SCORES[attrs["group_score"]], size))
    of_group = layers.reshape(layers.reduce("SUM", best, 3), (0, 0, num_groups))
    _, kept = layers.largest(of_group, attrs["top_groups"])
    # [B, S, g, 1] = [1, 1, 1, G] → [B, S, G, 1], 1 where one of g is the group
    numbers = layers.small(np.arange(num_groups).reshape(1, 1, 1, -1), "int32")
    kept = layers.reshape(kept, (0, 0, attrs["top_groups"], 1))
    found = layers.cast(layers.binary("EQUAL", kept, numbers), "float32")
    found = layers.reshape(layers.reduce("MAX", found, 2), (0, 0, num_groups, 1))
    is_kept = layers.binary("GREATER", found, layers.like(0.0, found))
    nothing = layers.like(-np.inf, grouped)
    return layers.reshape(layers.select(is_kept, grouped, nothing), (0, 0, attrs["num_experts"]))
