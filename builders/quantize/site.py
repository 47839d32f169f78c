"""One activation of a decoder layer, the linear modules it feeds, and what was observed of it.

Legend: in, out are a module's features; S the number of kept input rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.builders.quantize import ALGORITHMS
from llmc.lookup import load
from llmc.quant.format import Choice

Floats = npt.NDArray[np.float32]
Tensors = dict[str, npt.NDArray[Any]]
"""Checkpoint tensors by full name with the global layer number, unsplit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStats:
    """What was seen of an activation.

    `amax` and `mean_abs` [in] are per channel, over all tokens. `rows` [S, in] are evenly spaced
    tokens as they were. `hessian` [in, in] is the mean of the outer products x x^T, or None when
    the algorithm does not ask for it.
    """

    num_tokens: int
    amax: Floats
    mean_abs: Floats
    rows: Floats
    hessian: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One linear module. `weight` is [out, in] as the unquantized checkpoint has it.

    `parts` are the output rows of what was fused: three for qkv, else one. `output_amax` is the
    largest magnitude of its output, None where the format does not read it.
    """

    name: str
    weight: Floats
    parts: tuple[int, ...]
    output_amax: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One activation and its consumers.

    `norm` names the module whose output the activation is, when scales may be folded into its
    `norm_weight` and `norm_bias` [in]: it feeds these modules only.
    """

    modules: tuple[Module, ...]
    stats: InputStats
    norm: str | None = None
    norm_weight: Floats | None = None
    norm_bias: Floats | None = None

    @property
    def column_amax(self) -> Floats:
        """Largest magnitude [in] of the weights that meet each input channel."""
        columns = [np.abs(module.weight).max(axis=0) for module in self.modules]
        amax: Floats = np.max(columns, axis=0)
        return amax


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything an algorithm may be told. `dtype` is that of the checkpoint's plain tensors.

    `alpha`: how much of the activations' range moves into the weights, None: what each input likes
    best (smoothquant).
    `clamp`: bounds of inputs and weights (FP8_PER_CHANNEL_PER_TOKEN).
    `damping`: share of the mean diagonal added to the Hessian's (gptq).
    """

    algo: str
    dtype: str
    group_size: int = 128
    alpha: float | None = None
    clamp: tuple[float, float] = Choice().clamp
    damping: float = 0.01


def four_copies(num_out: int, num_in: int) -> int:
    """Return the bytes of four float32 copies of a weight: scaled, rounded, packed, compared."""
    return 16 * num_out * num_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One algorithm, as pure functions.

    `quantize` needs calibration: a site in, its modules' checkpoint tensors out (and its norm's,
    where scales were folded into it). `quantize_weight` needs none: it takes a module's name and a
    rank's part [out, in] of its weight. `propagates`: later layers see what the quantized layer
    computes, so that they can make up for its error. `scratch_bytes(out, in)` is what `quantize`
    needs for one module beside the site itself.
    """

    quantize: Callable[[Site, Settings], Tensors] | None = None
    quantize_weight: Callable[[str, Floats, Settings], Tensors] | None = None
    needs_hessian: bool = False
    propagates: bool = False
    scratch_bytes: Callable[[int, int], int] = four_copies


def load_algorithm(algo: str) -> Algorithm:
    """Return the algorithm of a quant_algo. Raises: UnsupportedError naming the known ones."""
    module = load(ALGORITHMS, algo, package="llmc.builders.quantize", kind="quantization")
    algorithm: Algorithm = module.ALGORITHM
    return algorithm
