"""CPU lowering of `linear`: packs the weight into panels, in its quantized form if it has one.

Inputs that are scaled or rounded first are so by an op of their own before the product; a fixed
scale of theirs is folded into the weight's.

The target may have fused what follows: a second input is the residual to add; the attribute
`fused_activation` is applied in the epilogue, to the output or, with `fused_half`, to that half of
it before it is multiplied with the other.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.dtypes import dtype_name
from llmc.errors import UnsupportedError
from llmc.plugins.activation.cpu import NUMBERS
from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall
from llmc.plugins.linear.quantized import Floats, InputRounding, interpret
from llmc.plugins.panels import (
    PANEL,
    interleave_halves,
    pack_groups,
    pack_nibble_panels,
    pack_panels,
    pad_columns,
    padded,
)
from llmc.quant import FORMATS, nvfp4
from llmc.quant.format import Choice, Elements, load_format

MAX_IN_FEATURES = 40960
"""A thread's scratch memory holds a tile of rows this long (plugins/csrc/kernel.h)."""

_NUMBERS = {None: 0, "int8": 1, "e4m3": 2, "e2m1": 3}
"""InputRounding.number → format of plugins/linear/csrc/round_rows.cpp."""


def unsupported(call: OpCall) -> list[str]:
    reasons = []
    quant, num_in = str(call.attrs["quant"]), call.attrs["in_features"]
    assert isinstance(num_in, int)
    if quant not in ("none", *FORMATS):
        return [f"{call.name}: quantization {quant!r}, the cpu target has {', '.join(FORMATS)}"]
    if quant != "none":
        form = load_format(quant)
        if form.needs_layout and call.attrs["stored_quantized"] and call.attrs["layout"] is None:
            reasons.append(
                f"{call.name}: {quant} weights, which TensorRT-LLM permutes for one GPU generation,"
                " and no layout that says for which"
            )
        if form.in_checkpoint == "quantized" and not call.attrs["stored_quantized"]:
            reasons.append(f"{call.name}: {quant}, expected a checkpoint that is quantized already")
        if form.activation == "nvfp4" and num_in % nvfp4.BLOCK:
            reasons.append(
                f"{call.name}: {num_in} input features, {quant} needs a multiple of {nvfp4.BLOCK}"
            )
    if num_in > MAX_IN_FEATURES:
        reasons.append(f"{call.name}: {num_in} input features, expected at most {MAX_IN_FEATURES}")
    return reasons


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    num_in, num_out = call.attrs["in_features"], call.attrs["out_features"]
    assert isinstance(num_in, int) and isinstance(num_out, int)
    bias = None
    if "bias" in call.weights:
        bias = lowering.read(call.weights["bias"]).astype(np.float32)
    packed = _Packed(call, lowering, num_in)
    if call.attrs["quant"] == "none":
        weight = lowering.read(call.weights["weight"])
        assert weight.shape == (num_out, num_in), (call.name, weight.shape)
        return [packed.product(weight, dtype_name(weight.dtype), bias)]
    elements, rounding = _quantized(call, lowering)
    assert elements.values.shape == (num_out, num_in), (call.name, elements.values.shape)
    ops: list[CpuOp] = []
    if not rounding.does_nothing:
        ops.append(_round_rows(call, lowering, rounding))
        packed.value = ops[0].outputs[0]
        packed.rounding = rounding
    fixed = np.float32(1.0 if rounding.scale is None else rounding.scale)
    return [*ops, packed.quantized(elements, fixed, bias)]


def _quantized(call: OpCall, lowering: Lowering) -> tuple[Elements, InputRounding]:
    if call.attrs["stored_quantized"]:
        tensors = {
            role: [lowering.read((name,)) for name in names]
            for role, names in call.weights.items()
            if role != "bias"
        }
        layout = call.attrs["layout"]
        assert layout is None or isinstance(layout, str)
        try:
            return interpret(str(call.attrs["quant"]), layout, tensors)
        except UnsupportedError as error:
            raise UnsupportedError(f"{call.name}: {error.message}") from error
    weight = lowering.read(call.weights["weight"])
    form = load_format(str(call.attrs["quant"]))
    return form.encode(weight, Choice(dtype=lowering.dtype)), InputRounding()


def _round_rows(call: OpCall, lowering: Lowering, rounding: InputRounding) -> CpuOp:
    num_in = call.attrs["in_features"]
    assert isinstance(num_in, int)
    output, name = f"{call.name}.input:out", f"{call.name}.input"
    tensors = [
        None if vector is None else lowering.write(f"{name}.{role}", vector)
        for role, vector in (("factor", rounding.factor), ("divisor", rounding.divisor))
    ]
    per_row = rounding.scale is None
    # The scales of rows stand behind the rows.
    lowering.add_value(output, lowering.rows(call.inputs[0]), num_in + per_row)
    scale = np.float32(1.0 if rounding.scale is None else rounding.scale)
    given = scale if rounding.number == "e2m1" else np.float32(1) / scale
    return CpuOp(
        kind="round_rows",
        name=name,
        inputs=call.inputs[:1],
        outputs=(output,),
        dims=(num_in, _NUMBERS[rounding.number], int(per_row)),
        params=(float(given), rounding.bound or 0.0),
        tensors=tuple(tensors),
    )


class _Packed:
    """The product itself: where its input is, and its weight in the order of the kernel."""

    def __init__(self, call: OpCall, lowering: Lowering, num_in: int) -> None:
        self.call, self.lowering, self.num_in = call, lowering, num_in
        self.gated = call.attrs.get("fused_half") is not None
        activation, half = call.attrs.get("fused_activation"), call.attrs.get("fused_half")
        self.activation = 0 if activation is None else NUMBERS[str(activation)]
        self.half = half if isinstance(half, int) else 0
        self.value = call.inputs[0]
        self.rounding = InputRounding()

    def quantized(self, elements: Elements, fixed: np.float32, bias: Floats | None) -> CpuOp:
        """Write a quantized weight; `fixed` is the scale of all inputs."""
        values, scale = elements.values, elements.scale * fixed
        zero = None if elements.zero is None else elements.zero * fixed
        four_bits = load_format(str(self.call.attrs["quant"])).weight_bits == 4
        if values.dtype == np.int8:
            type = "int4" if four_bits else "int8"
        elif four_bits:
            values, type = nvfp4.codes_of(values).view(np.int8), "float4_e2m1"
        else:
            values, type = values.view(np.int8), "float8_e4m3fn"
        if scale.shape[1] == 1 and zero is None:
            return self.product(values, type, bias, scale=scale[:, 0])
        return self.product(values, type, bias, groups=(scale, zero))

    def product(
        self,
        values: npt.NDArray[Any],
        type: str,
        bias: Floats | None,
        *,
        scale: Floats | None = None,
        groups: tuple[Floats, Floats | None] | None = None,
    ) -> CpuOp:
        call, lowering = self.call, self.lowering
        num_out = call.attrs["out_features"]
        assert isinstance(num_out, int)
        columns = num_out // 2 if self.gated else num_out
        if self.gated:
            values = interleave_halves(values)
            scale, bias = (None if x is None else interleave_halves(x) for x in (scale, bias))
        panels = padded(values.shape[0]) // PANEL
        pack = pack_nibble_panels if type in ("int4", "float4_e2m1") else pack_panels
        tensors: list[str | None] = [lowering.write(f"{call.name}.weight", pack(values))]
        for role, vector in (("scale", scale), ("bias", bias)):
            name = f"{call.name}.{role}"
            tensors.append(None if vector is None else lowering.write(name, pad_columns(vector)))
        group_size = has_zeros = 0
        if groups is not None:
            scales, zeros = (
                None if x is None else interleave_halves(x) if self.gated else x for x in groups
            )
            assert scales is not None
            tensors.append(lowering.write(f"{call.name}.groups", pack_groups(scales, zeros)))
            group_size, has_zeros = self.num_in // scales.shape[1], int(zeros is not None)
        lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), columns)
        return CpuOp(
            kind="linear",
            name=call.name,
            inputs=(self.value, *call.inputs[1:]),
            outputs=call.outputs,
            type=type,
            gated=self.gated,
            integer_rows=self.rounding.number == "int8",
            row_scales=self.rounding.scale is None,
            # 16 bits cannot hold all of e4m3 beside its largest.
            float_rows=type == "int4" and self.rounding.number == "e4m3",
            dims=(
                self.num_in,
                columns,
                panels,
                group_size,
                has_zeros,
                self.activation,
                self.half,
            ),
            tensors=tuple(tensors),
        )
