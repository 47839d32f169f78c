"""Rotary position tables: cos and sin per position, for every scaling a llama config can ask for.

Positions rotate by the neox rule: columns i and i + rotary_dim / 2 of a head turn together. A
scaling that would need another table as a sequence grows is supported only while one is exact.

Source: huggingface/transformers 5 src/transformers/modeling_rope_utils.py, whose float32 arithmetic
is followed; papers named at each scaling.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.errors import UnsupportedError

Float32Array = npt.NDArray[np.float32]

_LENGTH_DEPENDENT = ("dynamic", "longrope")
_REQUIRED_KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": ("original_max_position_embeddings",),
    "longrope": ("short_factor", "original_max_position_embeddings"),
}


def rope_tables(
    *,
    rotary_base: float,
    rotary_dim: int,
    rotary_scaling: dict[str, Any] | None,
    max_position_embeddings: int,
    num_positions: int,
) -> tuple[Float32Array, Float32Array]:
    """Return (cos, sin), each [num_positions, rotary_dim / 2], attention factor multiplied in.

    Raises: UnsupportedError with the reasons of `rope_unsupported`.
    """
    reasons = rope_unsupported(
        rotary_dim=rotary_dim,
        rotary_scaling=rotary_scaling,
        max_position_embeddings=max_position_embeddings,
        num_positions=num_positions,
    )
    if reasons:
        raise UnsupportedError("rotary positions cannot be tabulated", reasons)
    scaling = rotary_scaling or {}
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    wavelengths = np.float32(rotary_base) ** exponents
    frequencies, factor = _SCALINGS[rope_type(rotary_scaling)](
        wavelengths, scaling, rotary_base, max_position_embeddings
    )
    positions = np.arange(num_positions, dtype=np.float32)
    angles = positions[:, None] * frequencies.astype(np.float32)
    scale = np.float32(factor)
    return np.cos(angles) * scale, np.sin(angles) * scale


def rope_unsupported(
    *,
    rotary_dim: int,
    rotary_scaling: dict[str, Any] | None,
    max_position_embeddings: int,
    num_positions: int,
) -> list[str]:
    """Return every reason one table of `num_positions` positions cannot serve this model."""
    kind = rope_type(rotary_scaling)
    scaling = rotary_scaling or {}
    if kind not in _SCALINGS:
        return [f"rotary_scaling: {kind!r}, expected one of {', '.join(sorted(_SCALINGS))}"]
    reasons = [f"rotary_scaling.{key}: missing" for key in _missing(kind, scaling)]
    if rotary_dim % 2:
        reasons.append(f"rotary_dim: {rotary_dim}, expected an even number")
    if reasons or kind not in _LENGTH_DEPENDENT:
        return reasons
    limit = max_position_embeddings
    if kind == "longrope":
        limit = scaling["original_max_position_embeddings"]
        if len(scaling["short_factor"]) != rotary_dim // 2:
            found = len(scaling["short_factor"])
            reasons.append(
                f"rotary_scaling.short_factor: {found} entries, expected {rotary_dim // 2}"
            )
    if num_positions > limit:
        reasons.append(
            f"rotary_scaling {kind!r}: {num_positions} positions; beyond {limit} the table changes"
            f" with the length of the sequence, so the maximum is {limit}"
        )
    return reasons


def rope_type(rotary_scaling: dict[str, Any] | None) -> str:
    """Return the scaling's name; the key is "rope_type", or "type" in older configs."""
    scaling = rotary_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type")) or "default"
    return "longrope" if kind == "su" else str(kind)


def _missing(kind: str, scaling: dict[str, Any]) -> list[str]:
    return [key for key in _REQUIRED_KEYS[kind] if scaling.get(key) is None]


def _default(
    wavelengths: Float32Array, scaling: dict[str, Any], base: float, max_positions: int
) -> tuple[Float32Array, float]:
    """Unscaled; also dynamic NTK, whose base only changes beyond max_position_embeddings."""
    return 1 / wavelengths, 1.0


def _linear(
    wavelengths: Float32Array, scaling: dict[str, Any], base: float, max_positions: int
) -> tuple[Float32Array, float]:
    """Positions interpolated: divided by the factor. Source: arXiv 2306.15595."""
    return 1 / wavelengths / np.float32(scaling["factor"]), 1.0


def _llama3(
    wavelengths: Float32Array, scaling: dict[str, Any], base: float, max_positions: int
) -> tuple[Float32Array, float]:
    """Long waves divided, short ones kept, those between blended. Source: Llama 3.1's release."""
    factor = np.float32(scaling["factor"])
    low, high = np.float32(scaling["low_freq_factor"]), np.float32(scaling["high_freq_factor"])
    original = np.float32(scaling["original_max_position_embeddings"])
    frequencies = 1 / wavelengths
    turns = original / (np.float32(2 * math.pi) / frequencies)
    smooth = (turns - low) / (high - low)
    blended = (1 - smooth) * frequencies / factor + smooth * frequencies
    scaled = np.where(turns < low, frequencies / factor, frequencies)
    return np.where((turns >= low) & (turns <= high), blended, scaled), 1.0


def _yarn(
    wavelengths: Float32Array, scaling: dict[str, Any], base: float, max_positions: int
) -> tuple[Float32Array, float]:
    """Interpolate slow columns, keep fast ones, ramp between. Source: arXiv 2309.00071."""
    original = scaling["original_max_position_embeddings"]
    factor = scaling.get("factor") or max_positions / original
    dim = 2 * wavelengths.shape[0]

    def column_turning(num_turns: float) -> float:
        """Return the column index that makes `num_turns` turns within the original length."""
        return dim * math.log(original / (num_turns * 2 * math.pi)) / (2 * math.log(base))

    low = column_turning(scaling.get("beta_fast") or 32)
    high = column_turning(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    columns = np.arange(dim // 2, dtype=np.float32)
    ramp = np.clip((columns - np.float32(low)) / np.float32(high - low), 0, 1)
    interpolated = 1 / (np.float32(factor) * wavelengths)
    return interpolated * ramp + (1 - ramp) / wavelengths, _yarn_attention_factor(scaling, factor)


def _yarn_attention_factor(scaling: dict[str, Any], factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"])
    return mscale(1.0)


def _longrope(
    wavelengths: Float32Array, scaling: dict[str, Any], base: float, max_positions: int
) -> tuple[Float32Array, float]:
    """The short factors, in force up to the original length. Source: arXiv 2402.13753."""
    original = scaling["original_max_position_embeddings"]
    factor = scaling.get("factor") or max_positions / original
    attention = scaling.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return 1 / (np.asarray(scaling["short_factor"], np.float32) * wavelengths), float(attention)


_Scaling = Callable[[Float32Array, dict[str, Any], float, int], tuple[Float32Array, float]]
_SCALINGS: dict[str, _Scaling] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _default,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
