"""What a calibration records of one op while tokens pass it, in numpy.

Legend: T tokens of a chunk; in, out are a linear's features.
"""

from dataclasses import dataclass, field

import numpy as np

from llmc.builders.quantize.site import Floats, InputStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What is wanted of a linear op.

    `row_stride`: every so many tokens an input row is kept as it is. `columns` are the output
    columns of each module that the op computes at once; None: its output is not looked at.
    """

    row_stride: int
    keep_hessian: bool = False
    columns: tuple[int, ...] | None = None


@dataclass(slots=True, kw_only=True)
class LinearObserver:
    """One linear op's input and output, summed up over every token seen."""

    watch: Watch
    num_tokens: int = 0
    _amax: Floats | None = None
    _abs_sum: np.ndarray[tuple[int], np.dtype[np.float64]] | None = None
    _hessian: Floats | None = None
    _rows: list[Floats] = field(default_factory=list)
    _output_amax: Floats | None = None

    def see_input(self, x: Floats, gram: Floats | None = None) -> None:
        """Record a chunk [T, in], which may change afterwards.

        `gram` [in, in] is x^T x where the caller has a better way to compute it.
        """
        magnitude = np.abs(x)
        amax, abs_sum = magnitude.max(axis=0), magnitude.sum(axis=0)
        first = -self.num_tokens % self.watch.row_stride
        self._rows.append(x[first :: self.watch.row_stride].copy())
        self.num_tokens += len(x)
        if self.watch.keep_hessian:
            gram = x.T @ x if gram is None else gram
            self._hessian = (
                gram if self._hessian is None else np.add(self._hessian, gram, self._hessian)
            )
        if self._amax is None or self._abs_sum is None:
            self._amax, self._abs_sum = amax, abs_sum.astype(np.float64)
            return
        np.maximum(self._amax, amax, out=self._amax)
        self._abs_sum += abs_sum

    def see_output(self, y: Floats) -> None:
        """Record a chunk [T, sum(columns)]."""
        assert self.watch.columns is not None
        starts = np.cumsum([0, *self.watch.columns[:-1]])
        amax = np.maximum.reduceat(np.abs(y).max(axis=0), starts)
        self._output_amax = (
            amax if self._output_amax is None else np.maximum(self._output_amax, amax)
        )

    def stats(self) -> InputStats:
        """Return what was recorded of the input; the observer's own copy is given up."""
        assert self._amax is not None and self._abs_sum is not None, "nothing was seen"
        hessian, self._hessian = self._hessian, None
        rows, self._rows = np.concatenate(self._rows), []
        if hessian is not None:
            hessian /= np.float32(self.num_tokens)
        return InputStats(
            num_tokens=self.num_tokens,
            amax=self._amax,
            mean_abs=(self._abs_sum / self.num_tokens).astype(np.float32),
            rows=rows,
            hessian=hessian,
        )

    def output_amax(self) -> tuple[float, ...] | None:
        """Return the largest magnitude of each module's output, its bias included."""
        if self.watch.columns is None:
            return None
        assert self._output_amax is not None, "nothing was seen"
        return tuple(float(value) for value in self._output_amax)


@dataclass(slots=True, kw_only=True)
class KvObserver:
    """Largest magnitude of what the KV cache holds: values, and keys after their rotation."""

    amax: float = 0.0

    def see(self, amax: float) -> None:
        self.amax = max(self.amax, amax)


@dataclass(slots=True, kw_only=True)
class ExpertsObserver:
    """Largest magnitudes of what a layer's experts multiply: the tokens, and gated products."""

    num_tokens: int = 0
    input_amax: float = 0.0
    gated_amax: float = 0.0

    def see_input(self, x: Floats) -> None:
        """Record a chunk [T, in]."""
        self.num_tokens += len(x)
        self.input_amax = max(self.input_amax, float(np.abs(x).max()))

    def see_output(self, gated: Floats) -> None:
        """Record the inputs of the second product, of every token and choice."""
        self.gated_amax = max(self.gated_amax, float(np.abs(gated).max()))


Observer = LinearObserver | KvObserver | ExpertsObserver
