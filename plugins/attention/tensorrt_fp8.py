"""Fused attention in FP8: what a KV cache of FP8 comes to where a kernel multiplies in it.

Keys and values were rounded on their way into the cache, which stays in the type of activations:
rounding them again with the same scale changes nothing, and gives the kernel FP8. Queries and
probabilities are rounded here.

Legend: B slots, S tokens, N query heads, K KV heads, D head_size, C max_seq_len.
"""

import numpy as np

from llmc.plugins.tensorrt_lowering import Lowering, Tensor
from llmc.quant import fp8

NUMBER = "float8_e4m3fn"

QUERY_SCALE = 0.125
"""Of queries times the factor of scores: the largest is 56. Checkpoints have no scale for queries;
numbers are rounded to 4 bits wherever they lie between 2^-9 and that."""
PROBABILITY_SCALE = 1.0 / float(fp8.MAX)
"""Of what lies between 0 and 1."""


def round_inputs(
    lowering: Lowering, q_BNSD: Tensor, k_BKCD: Tensor, v_BKCD: Tensor, kv_scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and whole caches as the kernel reads them in FP8."""
    lowering.note(
        "attention is in FP8; the KV cache stays in 16 bits, and each step converts all of it"
    )
    query_scale = _number(lowering, QUERY_SCALE)
    return (
        _rounded(lowering, q_BNSD, query_scale),
        _rounded(lowering, k_BKCD, kv_scale),
        _rounded(lowering, v_BKCD, kv_scale),
    )


def round_probabilities(lowering: Lowering, attention: Tensor) -> None:
    """Have an attention layer round what it multiplies values with."""
    attention.normalization_quantize_to_type = lowering.layers.data_type(NUMBER)
    attention.normalization_quantize_scale = _number(lowering, PROBABILITY_SCALE)


def _rounded(lowering: Lowering, x: Tensor, scale: Tensor) -> Tensor:
    layers = lowering.layers
    return layers.dequantize(layers.quantize(x, scale, NUMBER), scale, lowering.dtype)


def _number(lowering: Lowering, value: float) -> Tensor:
    def make() -> Tensor:
        return lowering.layers.small(np.array(value, np.float32), "float32", "scale")

    return lowering.shared(f"fp8.{value}", make)
