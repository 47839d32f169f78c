"""What a scheme of quantized Hugging Face weights states about itself.

Legend: out, in of one Hugging Face linear module; groups = runs of `in` that share a scale.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.arch import ModelArch
from llmc.builders.hf.config import HfConfig
from llmc.checkpoint import layer_linears
from llmc.errors import CheckpointError
from llmc.quant.format import Choice

Array = npt.NDArray[Any]
Tensors = dict[str, Array]

FLOATS = ("float32", "float16", "bfloat16")
SCALAR: tuple[tuple[int, ...], ...] = ((), (1,))
"""Shapes of one number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One tensor of a quantized module: the dtypes and shapes it may have."""

    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One quantized Hugging Face module, read: its tensors by the end of their names.

    `name` is for messages: file and module.
    """

    name: str
    tensors: Tensors

    def scalar(self, suffix: str) -> np.float32:
        """Return a scale that is one number. Raises: CheckpointError unless it is positive."""
        return np.float32(self.scales(suffix).reshape(-1)[0])

    def scales(self, suffix: str) -> npt.NDArray[np.float32]:
        """Return a tensor of scales. Raises: CheckpointError unless all are finite and >= 0.

        A scale of zero is right where all it scales is; a single one must be positive.
        """
        scales: npt.NDArray[np.float32] = self.tensors[suffix].astype(np.float32)
        lowest = 0 if scales.size > 1 else np.finfo(np.float32).tiny
        bad = ~(np.isfinite(scales) & (scales >= lowest))
        if bad.any():
            found = float(scales[bad][0])
            raise CheckpointError(f"{self.name}.{suffix}: {found:g}, expected a positive number")
        return scales


Convert = Callable[[Sequence[Source], Choice], Tensors]
"""The modules that become one (q, k, v, or one alone), in order → its tensors by role, unsplit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """One way in which this model's linear modules are quantized.

    `algo` is the quant_algo of the format they go into. `stored(out, in)` are a module's tensors by
    the end of their names. `is_plain` says which modules (as "model.layers.0.mlp.up_proj") are not
    quantized. `group_size` is the checkpoint's, not more than the model's. `clamp` replaces the
    format's bounds of inputs. `kv_scales` are the scales of an FP8 KV cache, relative to the
    attention module. `tolerates_zero_bias`: modules may have a bias that is nothing but zeros.
    `look` is shown a module's small integers (those in `looked_at`) before anything is converted,
    and says what is wrong with them.
    """

    algo: str
    stored: Callable[[int, int], dict[str, Stored]]
    convert: Convert
    is_plain: Callable[[str], bool]
    group_size: int | None = None
    clamp: tuple[float, float] | None = None
    kv_scales: tuple[str, ...] = ()
    tolerates_zero_bias: bool = False
    looked_at: tuple[str, ...] = ()
    look: Callable[[Source], str | None] = lambda source: None


Read = Callable[[HfConfig, ModelArch], Scheme | None]
"""Settings of quantization_config → the scheme; None after noting reasons in them."""


def grouped_size(config: HfConfig, found: int | None, arch: ModelArch) -> int | None:
    """Return the group size to store for a model's (None or -1: one scale per row).

    A scale may be repeated for smaller groups, so any multiple of 64 is one of TensorRT-LLM's.
    None, with a reason, for others.
    """
    whole = [linear.num_in for linear in layer_linears(arch, 0)]
    sizes = whole if found is None or found == -1 else [found]
    for size in (128, 64):
        if all(length > 0 and length % size == 0 for length in sizes):
            return size
    config.refuse("group_size", found, "a multiple of 64, as TensorRT-LLM has no smaller groups")
    return None


def order_reason(source: Source, suffix: str, group_size: int) -> str | None:
    """Return why groups cannot be read in order: columns of one are spread over the weight."""
    index = source.tensors.get(suffix)
    if index is None or np.array_equal(index, np.arange(len(index)) // group_size):
        return None
    return (
        f"{source.name}.{suffix}: groups of permuted columns (desc_act, actorder), expected runs of"
        f" {group_size}: TensorRT-LLM's kernels read no permutation"
    )


def names_matcher(config: HfConfig, patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return whether a module is one of `patterns`: names, or "re:" and an expression.

    Source: compressed-tensors 0.20 compressed_tensors/utils/match.py. "Linear" is every module.
    """
    exact = {pattern for pattern in patterns if not pattern.startswith("re:")}
    expressions = []
    for pattern in patterns:
        if pattern.startswith("re:"):
            try:
                expressions.append(re.compile(pattern.removeprefix("re:")))
            except re.error as error:
                config.refuse("ignore or targets", pattern, f"a regular expression ({error})")

    def matches(module: str) -> bool:
        return (
            "Linear" in exact
            or module in exact
            or any(expression.match(module) for expression in expressions)
        )

    return matches


def pattern_matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return whether a module, or one it is in, matches one of the shell patterns."""
    return lambda module: any(
        fnmatchcase(module, pattern) or fnmatchcase(module, f"{pattern}.*") for pattern in patterns
    )


def strings(config: HfConfig, key: str) -> tuple[str, ...]:
    """Return setting `key`, a list of names; absent, null and anything else are none.

    What is no list of names is noted as a reason.
    """
    found = config.raw(key)
    if found is None:
        return ()
    if isinstance(found, list) and all(isinstance(item, str) for item in found):
        return tuple(found)
    config.refuse(key, found, "a list of names")
    return ()
