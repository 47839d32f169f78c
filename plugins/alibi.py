"""ALiBi: a bias on attention scores that falls with distance, at a slope of its own for each head.

Read alike by the reference and every lowering. `alibi` is the attribute of `attention`:
{"first_head": index of this rank's first head among all, "total_heads": heads of the model,
"scaled": whether the bias is Falcon's}.

Source: arXiv 2108.12409 and its authors' reference code, for numbers of heads that are not powers
of two.
"""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]


def alibi_slopes(alibi: dict[str, Any], num_heads: int) -> Float32Array:
    """Return the slopes [num_heads] of this rank's heads.

    A power of two n has 2^(-8 i / n), i from 1; other counts take every second slope of the next
    power of two, those with even i first. Falcon's are rounded to bfloat16.
    """
    total, first = alibi["total_heads"], alibi["first_head"]
    power = 1 << (total - 1).bit_length()
    slopes = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    if power != total:
        slopes = np.concatenate([slopes[1::2], slopes[::2]])[:total]
    own = slopes[first : first + num_heads].astype(np.float32)
    return _to_bfloat16(own) if alibi["scaled"] else own


def alibi_bias(
    alibi: dict[str, Any], num_heads: int, positions: npt.NDArray[Any], num_keys: int, scale: float
) -> Float32Array:
    """Return what is added to the scores of queries at `positions` [T]: [num_heads, T, num_keys].

    It is slope * (key - query). Falcon's is scale * (slope * key), the product rounded to bfloat16:
    the same up to a constant of the query, as long as bfloat16 holds the product.
    Source: huggingface/transformers 5.24 models/falcon/modeling_falcon.py, build_alibi_tensor.
    """
    slopes = alibi_slopes(alibi, num_heads)[:, None, None]
    keys = np.arange(num_keys, dtype=np.float32)
    if alibi["scaled"]:
        bias = _to_bfloat16(slopes * keys) * np.float32(scale)
        return bias.repeat(len(positions), axis=1)
    return slopes * (keys - positions.astype(np.float32)[:, None])


def _to_bfloat16(values: Float32Array) -> Float32Array:
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)
