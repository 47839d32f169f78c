"""Rotary angles: cos and sin of a token's place, for every scaling a config can ask for.

An angle is position * frequency of the column pair; which columns pair up is the attention's
`rope_style`. Two scalings change the frequencies once a sequence is longer than the model was first
trained for. What counts is the rope length of a token: its prompt's length, or its own place
(counted from 1) if that is later; so chunks, batches and preemption change nothing.

Source: huggingface/transformers 5.24 src/transformers/modeling_rope_utils.py, whose float32
arithmetic is followed; papers named at each scaling.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.errors import UnsupportedError

Float32Array = npt.NDArray[np.float32]

_REQUIRED_KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
    "longrope": ("short_factor", "long_factor"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDependence:
    """Angles that change once the rope length of a token is beyond `original`.

    `each`: every length beyond has its own; else all of them share theirs.
    """

    original: int
    each: bool


def length_dependence(
    rotary_scaling: dict[str, Any] | None, max_position_embeddings: int
) -> LengthDependence | None:
    """Return how angles depend on more than the position; None: they do not."""
    kind = rope_type(rotary_scaling)
    if kind == "dynamic":
        return LengthDependence(original=max_position_embeddings, each=True)
    if kind == "longrope":
        original = _original_length(rotary_scaling or {}, max_position_embeddings)
        return LengthDependence(original=original, each=False)
    return None


def rope_angles(
    *,
    rotary_base: float,
    rotary_dim: int,
    rotary_scaling: dict[str, Any] | None,
    max_position_embeddings: int,
    positions: npt.NDArray[Any],
    lengths: npt.NDArray[Any],
) -> tuple[Float32Array, Float32Array]:
    """Return (cos, sin), each [T, rotary_dim / 2], of tokens at `positions` with rope `lengths`.

    The attention factor is multiplied in.
    Raises: UnsupportedError with the reasons of `rope_unsupported`.
    """
    reasons = rope_unsupported(rotary_dim=rotary_dim, rotary_scaling=rotary_scaling)
    if reasons:
        raise UnsupportedError("positions cannot be rotary", reasons)
    changes = length_dependence(rotary_scaling, max_position_embeddings)
    regimes = np.zeros(len(positions), np.int64)
    if changes is not None:
        beyond = lengths if changes.each else np.full_like(lengths, changes.original + 1)
        regimes = np.where(lengths > changes.original, beyond, 0)
    angles = np.empty((len(positions), rotary_dim // 2), np.float32)
    factor = 1.0
    for regime in np.unique(regimes):
        frequencies, factor = _SCALINGS[rope_type(rotary_scaling)](
            _Settings(
                base=rotary_base,
                dim=rotary_dim,
                scaling=rotary_scaling or {},
                max_positions=max_position_embeddings,
                beyond=int(regime) or None,
            )
        )
        rows = regimes == regime
        angles[rows] = positions[rows].astype(np.float32)[:, None] * frequencies
    scale = np.float32(factor)
    return np.cos(angles) * scale, np.sin(angles) * scale


def rope_tables(
    *,
    rotary_base: float,
    rotary_dim: int,
    rotary_scaling: dict[str, Any] | None,
    max_position_embeddings: int,
    num_positions: int,
    rope_length: int | None = None,
) -> tuple[Float32Array, Float32Array]:
    """Return (cos, sin) of positions 0 to num_positions - 1, each [num_positions, rotary_dim / 2].

    All have the rope length `rope_length`; None: they are the angles of sequences of any length.
    Raises: UnsupportedError with the reasons of `rope_unsupported`, or because there are no such.
    """
    changes = length_dependence(rotary_scaling, max_position_embeddings)
    if rope_length is None and changes is not None and num_positions > changes.original:
        raise UnsupportedError(
            f"rotary_scaling {rope_type(rotary_scaling)!r}: {num_positions} positions; beyond"
            f" {changes.original} angles change with the length of the sequence"
        )
    return rope_angles(
        rotary_base=rotary_base,
        rotary_dim=rotary_dim,
        rotary_scaling=rotary_scaling,
        max_position_embeddings=max_position_embeddings,
        positions=np.arange(num_positions),
        lengths=np.full(num_positions, rope_length or 0),
    )


def tables_by_length(*, num_positions: int, **settings: Any) -> tuple[Float32Array, Float32Array]:
    """Return tables for sequences of any length up to num_positions, arguments as of rope_tables.

    Positions below the original length come first, of sequences that stay below it. Where all
    longer ones share theirs, those of every position follow; where none do, nothing does.
    """
    changes = length_dependence(settings["rotary_scaling"], settings["max_position_embeddings"])
    if changes is None or num_positions <= changes.original:
        return rope_tables(**settings, num_positions=num_positions)
    original = changes.original
    parts = [rope_tables(**settings, num_positions=original)]
    if not changes.each:
        parts.append(rope_tables(**settings, num_positions=num_positions, rope_length=original + 1))
    cos, sin = (np.concatenate(tables) for tables in zip(*parts, strict=True))
    return cos, sin


def rope_unsupported(*, rotary_dim: int, rotary_scaling: dict[str, Any] | None) -> list[str]:
    """Return every reason why there are no such rotary positions."""
    kind = rope_type(rotary_scaling)
    scaling = rotary_scaling or {}
    if kind not in _SCALINGS:
        return [f"rotary_scaling: {kind!r}, expected one of {', '.join(sorted(_SCALINGS))}"]
    missing = [key for key in _REQUIRED_KEYS[kind] if scaling.get(key) is None]
    reasons = [f"rotary_scaling.{key}: missing" for key in missing]
    if rotary_dim % 2 or (kind == "dynamic" and rotary_dim < 4):
        reasons.append(f"rotary_dim: {rotary_dim}, expected an even number, with 'dynamic' over 2")
    for key in ("short_factor", "long_factor"):
        found = len(scaling.get(key) or ())
        if kind == "longrope" and key not in missing and found != rotary_dim // 2:
            reasons.append(f"rotary_scaling.{key}: {found} entries, expected {rotary_dim // 2}")
    return reasons


def rope_type(rotary_scaling: dict[str, Any] | None) -> str:
    """Return the scaling's name; the key is "rope_type", or "type" in older configs."""
    scaling = rotary_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type")) or "default"
    return "longrope" if kind == "su" else str(kind)


def _original_length(scaling: dict[str, Any], max_positions: int) -> int:
    return int(scaling.get("original_max_position_embeddings") or max_positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """What a scaling reads. `beyond` is the rope length if it is beyond the original, else None."""

    base: float
    dim: int
    scaling: dict[str, Any]
    max_positions: int
    beyond: int | None

    @property
    def original(self) -> int:
        return _original_length(self.scaling, self.max_positions)

    def wavelengths(self, base: float | None = None) -> Float32Array:
        """Return base^(2 i / dim), over 2 pi the positions of a turn of column pair i."""
        exponents = np.arange(0, self.dim, 2, dtype=np.float32) / np.float32(self.dim)
        waves: Float32Array = np.float32(self.base if base is None else base) ** exponents
        return waves


_Frequencies = tuple[Float32Array, float]
"""Radians per position of each column pair, and the factor of q and k."""


def _default(settings: _Settings) -> _Frequencies:
    return 1 / settings.wavelengths(), 1.0


def _linear(settings: _Settings) -> _Frequencies:
    """Positions interpolated: divided by the factor. Source: arXiv 2306.15595."""
    return 1 / settings.wavelengths() / np.float32(settings.scaling["factor"]), 1.0


def _dynamic(settings: _Settings) -> _Frequencies:
    """A base that grows with the length beyond the original. Source: arXiv 2309.00071."""
    if settings.beyond is None:
        return _default(settings)
    factor = settings.scaling["factor"]
    stretch = factor * settings.beyond / settings.max_positions - (factor - 1)
    base = settings.base * stretch ** (settings.dim / (settings.dim - 2))
    return 1 / settings.wavelengths(base), 1.0


def _llama3(settings: _Settings) -> _Frequencies:
    """Long waves divided, short ones kept, those between blended. Source: Llama 3.1's release."""
    scaling = settings.scaling
    factor = np.float32(scaling["factor"])
    low, high = np.float32(scaling["low_freq_factor"]), np.float32(scaling["high_freq_factor"])
    frequencies = 1 / settings.wavelengths()
    turns = np.float32(settings.original) / (np.float32(2 * math.pi) / frequencies)
    smooth = (turns - low) / (high - low)
    blended = (1 - smooth) * frequencies / factor + smooth * frequencies
    scaled = np.where(turns < low, frequencies / factor, frequencies)
    return np.where((turns >= low) & (turns <= high), blended, scaled), 1.0


def _yarn(settings: _Settings) -> _Frequencies:
    """Interpolate slow columns, keep fast ones, ramp between. Source: arXiv 2309.00071."""
    scaling, dim = settings.scaling, settings.dim
    factor = scaling.get("factor") or settings.max_positions / settings.original

    def column_turning(num_turns: float) -> float:
        """Return the column index that makes `num_turns` turns within the original length."""
        turns = settings.original / (num_turns * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(settings.base))

    low = column_turning(scaling.get("beta_fast") or 32)
    high = column_turning(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    columns = np.arange(dim // 2, dtype=np.float32)
    ramp = np.clip((columns - np.float32(low)) / np.float32(high - low), 0, 1)
    wavelengths = settings.wavelengths()
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


def _longrope(settings: _Settings) -> _Frequencies:
    """Short factors up to the original length, long ones beyond. Source: arXiv 2402.13753."""
    scaling = settings.scaling
    factor = scaling.get("factor") or settings.max_positions / settings.original
    attention = scaling.get("attention_factor")
    if attention is None:
        stretch = 1 + math.log(factor) / math.log(settings.original)
        attention = 1.0 if factor <= 1 else math.sqrt(stretch)
    factors = scaling["short_factor" if settings.beyond is None else "long_factor"]
    waves = np.asarray(factors, np.float32) * settings.wavelengths()
    return 1 / waves, float(attention)


_SCALINGS: dict[str, Callable[[_Settings], _Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
