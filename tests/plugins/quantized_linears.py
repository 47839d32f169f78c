"""Quantized linears in memory: checkpoint tensors, lowered and run on a chosen instruction set."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.dtypes import numpy_dtype
from llmc.plugins import native
from llmc.plugins.cpu_program import (
    FLAG_FLOAT_ROWS,
    FLAG_GATED,
    FLAG_INTEGER_ROWS,
    FLAG_ROW_SCALES,
    KINDS,
    TYPES,
    CpuOp,
)
from llmc.plugins.graph import OpCall
from llmc.plugins.linear import cpu
from llmc.quant import layouts
from llmc.quant.format import Choice, load_format
from tests.plugins.kernels_cpu import Float32Array, team

LAYOUT = "sm80"


def stored(
    algo: str, weight: Float32Array, choice: Choice, layout: str | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors of one quantized module as its checkpoint holds them."""
    form = load_format(algo)
    tensors = form.quantize(weight, choice).tensors
    if form.needs_layout and layout is not None:
        arranged = layouts.arrange(tensors["weight"], layout, bits=form.weight_bits)
        tensors = tensors | {"weight": arranged}
    return tensors


def choice_for(
    algo: str, num_in: int, *, module: str = "fc", x: Float32Array, group_size: int = 64
) -> Choice:
    """Choose scales as a calibration on `x` would, inputs of a half to two as the smoothing."""
    form = load_format(algo)
    prequant = smoother = None
    spread = np.exp2(np.random.default_rng(5).uniform(-1, 1, num_in)).astype(np.float32)
    roles = {tensor.role for tensor in form.tensors_of(module)}
    if "prequant_scaling_factor" in roles:
        prequant = spread.astype(np.float16).astype(np.float32)
    if "smoother" in roles:
        smoother = spread
    scaled = x * (1 if prequant is None else prequant) / (1 if smoother is None else smoother)
    return Choice(
        module=module,
        dtype="float16",
        group_size=16 if algo == "NVFP4" else group_size,
        input_amax=float(np.abs(scaled).max()),
        output_amax=4.0,
        prequant=prequant,
        smoother=smoother,
    )


@dataclass(slots=True, kw_only=True)
class MemoryLowering:
    """plugins.cpu_lowering.Lowering over dictionaries."""

    tensors: dict[str, npt.NDArray[Any]]
    written: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)
    dtype: str = "float16"

    def read(self, names: tuple[str, ...]) -> npt.NDArray[Any]:
        parts = [self.tensors[name] for name in names]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def read_part(self, name: str, index: int) -> npt.NDArray[Any]:
        part: npt.NDArray[Any] = self.tensors[name][index]
        return part

    def write(self, name: str, array: npt.NDArray[Any], *, resident: bool = True) -> str:
        self.written[name] = np.ascontiguousarray(array)
        return name

    def write_parts(self, name: str, count: int, parts: Iterable[npt.NDArray[Any]]) -> str:
        return self.write(name, np.stack(list(parts)))

    def add_value(self, name: str, rows: Any, columns: int) -> None:
        self.columns[name] = columns

    def rows(self, value: str) -> Any:
        return "T"


class QuantizedLinear:
    """A call over the stored tensors of one or more modules."""

    def __init__(
        self,
        algo: str,
        modules: list[dict[str, npt.NDArray[Any]]],
        *,
        in_features: int,
        out_features: int,
        layout: str | None = None,
        attrs: dict[str, Any] | None = None,
    ) -> None:
        self.tensors = {
            f"{place}.{role}": tensor
            for place, tensors in enumerate(modules)
            for role, tensor in tensors.items()
        }
        self.call = OpCall(
            plugin="linear",
            name="it",
            inputs=("x",),
            outputs=("y",),
            attrs={
                "in_features": in_features,
                "out_features": out_features,
                "quant": algo,
                "stored_quantized": True,
                "layout": layout,
                **(attrs or {}),
            },
            weights={
                role: tuple(f"{place}.{role}" for place in range(len(modules)))
                for role in modules[0]
            },
        )
        assert cpu.unsupported(self.call) == []
        self.lowering = MemoryLowering(tensors=self.tensors)
        self.ops = cpu.lower(self.call, self.lowering)  # type: ignore[arg-type]

    def __call__(self, instruction_set: str, x: Float32Array) -> Float32Array:
        count = x.shape[0]
        names = list(self.lowering.columns)
        buffers = [np.full(count * self.lowering.columns[n], np.nan, np.float32) for n in names]
        places = {name: place + 1 for place, name in enumerate(names)} | {"x": 0}
        ops = [self._native(op, places) for op in self.ops]
        batch = native.NativeBatch(num_tokens=count, num_logits=count)
        addresses = [array.ctypes.data for array in (np.ascontiguousarray(x), *buffers)]
        team(instruction_set).run(ops, batch, addresses)
        return buffers[places["y"] - 1].reshape(count, -1)

    def _native(self, op: CpuOp, places: dict[str, int]) -> native.NativeOp:
        found = native.NativeOp(
            kind=KINDS[op.kind],
            type=TYPES[op.type],
            input=places[op.inputs[0]],
            input2=-1,
            output=places[op.outputs[0]],
            flags=FLAG_GATED * op.gated
            | FLAG_INTEGER_ROWS * op.integer_rows
            | FLAG_ROW_SCALES * op.row_scales
            | FLAG_FLOAT_ROWS * op.float_rows,
        )
        found.dim[: len(op.dims)] = op.dims
        found.param[: len(op.params)] = op.params
        for place, name in enumerate(op.tensors):
            found.tensor[place] = None if name is None else self.lowering.written[name].ctypes.data
        return found


def plain(algo: str, weight: Float32Array) -> QuantizedLinear:
    """Return a linear whose checkpoint is not quantized yet."""
    num_out, num_in = weight.shape
    tensors = {"weight": weight.astype(numpy_dtype("float16"))}
    return QuantizedLinear(
        algo,
        [tensors],
        in_features=num_in,
        out_features=num_out,
        attrs={"stored_quantized": False},
    )
