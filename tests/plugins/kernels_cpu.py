"""Runs single CPU kernels on numpy arrays, on a chosen instruction set."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llmc.plugins import native
from llmc.plugins.activation.cpu import NUMBERS
from llmc.plugins.activation.reference import ACTIVATIONS
from llmc.plugins.cpu_program import FLAG_GATED, KINDS, TYPES
from llmc.plugins.panels import PANEL, interleave_halves, pack_panels, pad_columns, padded
from llmc.quant import w8a16

Float32Array = npt.NDArray[np.float32]

INSTRUCTION_SETS = [name for name, supported in native.instruction_sets().items() if supported]
"""What this CPU runs: its own, all smaller ones, and the emulated larger ones."""

_TEAMS: dict[str, native.Team] = {}


def team(instruction_set: str) -> native.Team:
    """Return a team of two threads, kept for the whole test run."""
    if instruction_set not in _TEAMS:
        _TEAMS[instruction_set] = native.Team(threads=2, instruction_set=instruction_set)
    return _TEAMS[instruction_set]


def run(
    instruction_set: str,
    kind: str,
    *,
    inputs: list[npt.NDArray[Any]],
    output: Float32Array,
    tensors: list[npt.NDArray[Any] | None] = [],  # noqa: B006 - never modified
    dims: tuple[int, ...] = (),
    params: tuple[float, ...] = (),
    type: str = "float32",
    flags: int = 0,
    batch: native.NativeBatch | None = None,
) -> Float32Array:
    """Run one kernel over the rows of `output` and return it."""
    op = native.NativeOp(
        kind=KINDS[kind],
        type=TYPES[type],
        input=0 if inputs else -1,
        input2=1 if len(inputs) > 1 else -1,
        output=len(inputs),
        flags=flags,
    )
    op.dim[: len(dims)] = dims
    op.param[: len(params)] = params
    for place, tensor in enumerate(tensors):
        op.tensor[place] = None if tensor is None else tensor.ctypes.data
    batch = batch or native.NativeBatch(num_tokens=output.shape[0], num_logits=output.shape[0])
    team(instruction_set).run([op], batch, [a.ctypes.data for a in (*inputs, output)])
    return output


def activated(name: str, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return an activation in float64, by its reference."""
    found: npt.NDArray[np.float64] = ACTIVATIONS[name](torch.from_numpy(x)).numpy()
    return found


class Linear:
    """A packed linear layer and the float64 matrix it stands for."""

    def __init__(
        self,
        weight: Float32Array,
        type: str,
        *,
        bias: Float32Array | None = None,
        gated: bool = False,
        activation: str | None = None,
        half: int = 0,
    ) -> None:
        self.type, self.gated, self.half = type, gated, half
        self.activation = activation or ("silu" if gated else None)
        self.num_out, self.num_in = weight.shape
        scale = None
        stored: npt.NDArray[Any]
        if type == "int8":
            stored, scale = w8a16.quantize(weight)
        else:
            import ml_dtypes

            names = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
            stored = weight.astype(names[type])
        self.matrix = stored.astype(np.float64)
        if scale is not None:
            self.matrix *= scale[:, None]
        self.bias = bias
        if gated:
            stored = interleave_halves(stored)
            scale, bias = (None if x is None else interleave_halves(x) for x in (scale, bias))
        self.panels = pack_panels(stored)
        self.num_panels = padded(stored.shape[0]) // PANEL
        self.vectors = [None if x is None else pad_columns(x) for x in (scale, bias)]

    def __call__(
        self, instruction_set: str, x: Float32Array, residual: Float32Array | None = None
    ) -> Float32Array:
        columns = self.num_out // 2 if self.gated else self.num_out
        return run(
            instruction_set,
            "linear",
            inputs=[x] if residual is None else [x, residual],
            output=np.full((x.shape[0], columns), np.nan, np.float32),
            tensors=[self.panels, *self.vectors],
            dims=(
                *(self.num_in, columns, self.num_panels, 0, 0),
                *(NUMBERS[self.activation] if self.activation else 0, self.half),
            ),
            type=self.type,
            flags=FLAG_GATED if self.gated else 0,
        )

    def expected(
        self, x: Float32Array, residual: Float32Array | None = None
    ) -> npt.NDArray[np.float64]:
        y: npt.NDArray[np.float64] = x.astype(np.float64) @ self.matrix.T
        if self.bias is not None:
            y += self.bias
        if self.gated:
            halves = np.split(y, 2, axis=1)
            y = activated(str(self.activation), halves[self.half]) * halves[1 - self.half]
        elif self.activation:
            y = activated(self.activation, y)
        return y if residual is None else y + residual
