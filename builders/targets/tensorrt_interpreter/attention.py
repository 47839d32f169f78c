"""The attention layer: softmax(q kᵀ + mask) v, without a scale."""

import torch

from llmc.builders.targets.tensorrt_interpreter.graph import Layer
from llmc.builders.targets.tensorrt_interpreter.inputs import (
    Inputs,
    Mode,
    choose,
    optional,
    tensor,
)
from llmc.builders.targets.tensorrt_interpreter.numbers import ROUND
from llmc.errors import BuildError

MASK, PROBABILITY_SCALE, QUERY_LENGTHS, KEY_VALUE_LENGTHS = 3, 4, 5, 6
"""Places of the optional inputs; queries, keys and values are 0 to 2."""

_ALIGNED: dict[str, str | None] = {
    "NONE": None, "UPPER_LEFT": "UPPER_LEFT", "LOWER_RIGHT": "LOWER_RIGHT"
}  # fmt: skip


def attention(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    """Attend with q [B, Hq, S, D] to k and v [B, Hkv, S_kv, D]; returns [B, Hq, S, D].

    Query i may see key j if j <= i (UPPER_LEFT), or if j <= i + length - S (LOWER_RIGHT), where
    length is the row's of key_value_lengths, else S_kv. Keys from the length on are never seen.
    A mask of bools says which may be seen, another is added to the scores; probabilities are
    quantized where the layer says so. Source: IAttention in NvInfer.h; the alignment was
    confirmed with ONNX's Attention (opset 24, nonpad_kv_seqlen).
    """
    q, k, v = (tensor(layer, inputs, index) for index in range(3))
    for form in ("query_form", "key_value_form"):
        choose(layer, form, {"PADDED_BHND": None})
    choose(layer, "norm_op", {"SOFTMAX": None})
    groups = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(groups, 1).transpose(-1, -2)
    mask = optional(inputs, MASK)
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask
    visible = _visible(layer, inputs, scores)
    if mask is not None and mask.dtype == torch.bool:
        visible = visible & mask
    if not visible.any(-1).all():
        raise BuildError(f"{layer.name}: a query that no key is visible to")
    probabilities = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    probabilities = _quantized(layer, inputs, probabilities)
    return probabilities @ v.repeat_interleave(groups, 1)


def _visible(layer: Layer, inputs: Inputs, scores: torch.Tensor) -> torch.Tensor:
    """Return [B, 1, S, S_kv] or less: which keys lengths and causality leave to each query."""
    num_rows, _, num_queries, num_keys = scores.shape
    keys, queries = torch.arange(num_keys), torch.arange(num_queries)[:, None]
    lengths = optional(inputs, KEY_VALUE_LENGTHS)
    if lengths is None:
        lengths = torch.full((num_rows,), num_keys)
    if int(lengths.min()) < 1 or int(lengths.max()) > num_keys:
        raise BuildError(f"{layer.name}: key_value_lengths {lengths.tolist()} of {num_keys} keys")
    lengths = lengths[:, None, None, None]
    visible = (keys < lengths).expand(num_rows, 1, num_queries, num_keys)
    causal = choose(layer, "causal_kind", _ALIGNED)
    if causal == "UPPER_LEFT":
        visible = visible & (keys <= queries)
    elif causal == "LOWER_RIGHT":
        visible = visible & (keys <= queries + lengths - num_queries)
    return visible


def _quantized(layer: Layer, inputs: Inputs, probabilities: torch.Tensor) -> torch.Tensor:
    scale = optional(inputs, PROBABILITY_SCALE)
    if scale is None:
        return probabilities
    rounded = choose(layer, "normalization_quantize_to_type", ROUND)(probabilities / scale)
    return rounded * scale
