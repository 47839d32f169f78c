"""Products of quantized weights in TensorRT: one function for each way inputs and weights are held.

Every format comes to the numbers of `interpret` (plugins/linear/quantized.py) first: portable and
permuted weights alike. They are read only where values are wanted.

Legend: N out_features, K in_features, G groups along K.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.dtypes import numpy_dtype
from llmc.plugins.graph import OpCall
from llmc.plugins.linear.quantized import InputRounding, interpret
from llmc.plugins.tensorrt_lowering import Lowering, Tensor
from llmc.quant import fp8, nvfp4
from llmc.quant.format import Choice, Elements, QuantFormat, load_format
from llmc.quant.integers import pack_nibbles

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeight:
    """One weight [N, K] to be, whose numbers are read when they are wanted and not kept.

    `name` begins the names of its constants. `group` is how many inputs share a scale of four bits
    in the plan. `scales_input`: inputs are multiplied, or divided, before they are rounded.
    """

    lowering: Lowering
    name: str
    quant: str
    num_out: int
    num_in: int
    group: int
    read: Callable[[], tuple[Elements, InputRounding]]
    scales_input: bool = False

    @property
    def form(self) -> QuantFormat:
        return load_format(self.quant)

    def constant(
        self,
        role: str,
        shape: tuple[int, ...],
        dtype: str,
        take: Callable[[Elements, InputRounding], Array],
    ) -> Tensor:
        """Add what `take` makes of the numbers as the constant "<name>:<role>"."""
        return self.lowering.weight(f"{self.name}:{role}", shape, dtype, lambda: take(*self.read()))


def weight_of(call: OpCall, lowering: Lowering) -> QuantizedWeight:
    """Return the weight of a call of `linear`."""
    attrs: dict[str, Any] = call.attrs
    names, quant, num_in = call.weights["weight"], str(attrs["quant"]), attrs["in_features"]
    form = load_format(quant)

    def read() -> tuple[Elements, InputRounding]:
        if not attrs["stored_quantized"]:
            weight = lowering.read(names)
            return form.encode(weight, Choice(dtype=lowering.dtype)), InputRounding()
        tensors = {
            role: [lowering.read((name,)) for name in of_modules]
            for role, of_modules in call.weights.items()
            if role != "bias"
        }
        return interpret(quant, attrs["layout"], tensors)

    per_channel = form.granularity == "per_channel"
    module = names[0].removesuffix(".weight")
    return QuantizedWeight(
        lowering=lowering,
        name="+".join(names),
        quant=quant,
        num_out=attrs["out_features"],
        num_in=num_in,
        group=wide_group(num_in) if per_channel else lowering.group_size(module),
        read=read,
        scales_input="prequant_scaling_factor" in call.weights or "smoother" in call.weights,
    )


_WIDE_GROUPS = (128, 64, 32, 16)


def wide_group(num_in: int) -> int:
    """Return how many inputs share a scale in the plan where in the format `num_in` do."""
    return next((size for size in _WIDE_GROUPS if num_in % size == 0), num_in)


def product(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """Return the product of x [B, S, K] with the weight, [B, S, N] in the type of activations."""
    return FORMATS[weight.quant](weight.lowering, _scale_input(weight, x), weight)


def _scale_input(weight: QuantizedWeight, x: Tensor) -> Tensor:
    if not weight.scales_input:
        return x
    lowering = weight.lowering

    def factor(elements: Elements, rounding: InputRounding) -> Array:
        found = np.ones(weight.num_in, np.float32)
        if rounding.factor is not None:
            found = found * rounding.factor
        if rounding.divisor is not None:
            found = found / rounding.divisor
        return found.astype(numpy_dtype(lowering.dtype)).reshape(1, 1, -1)

    scale = weight.constant("input_factor", (1, 1, weight.num_in), lowering.dtype, factor)
    return lowering.layers.binary("PROD", x, scale)


def _input_scale(elements: Elements, rounding: InputRounding) -> Array:
    assert rounding.scale is not None
    return np.array(rounding.scale, np.float32)


def round_input(x: Tensor, weight: QuantizedWeight, dtype: str) -> Tensor:
    """Return x as numbers of `dtype` times the one scale the weight's format has for its input."""
    if weight.form.activation == "none":
        return x
    layers = weight.lowering.layers
    scale = weight.constant("input_scale", (), "float32", _input_scale)
    return layers.dequantize(layers.quantize(x, scale, dtype), scale, weight.lowering.dtype)


def _eight_bits(dtype: str) -> Callable[[Lowering, Tensor, QuantizedWeight], Tensor]:
    """Weights [N, K] with a scale for each row or for all, inputs rounded with one scale."""

    def lower(lowering: Lowering, x: Tensor, weight: QuantizedWeight) -> Tensor:
        layers = lowering.layers
        values = weight.constant(
            "values",
            (1, weight.num_out, weight.num_in),
            dtype,
            lambda elements, rounding: elements.values,
        )
        scales = weight.constant("scales", (weight.num_out,), "float32", _row_scales(weight))
        matrix = layers.dequantize(values, scales, lowering.dtype, axis=1)
        return layers.matmul(round_input(x, weight, dtype), matrix, transpose_b=True)

    return lower


def _row_scales(weight: QuantizedWeight) -> Callable[[Elements, InputRounding], Array]:
    def take(elements: Elements, rounding: InputRounding) -> Array:
        assert elements.scale.shape[1] == 1, elements.scale.shape
        scales = np.broadcast_to(elements.scale[:, 0], (weight.num_out,))
        return np.ascontiguousarray(scales, np.float32)

    return take


def _four_bits(lowering: Lowering, x: Tensor, weight: QuantizedWeight) -> Tensor:
    """INT4 weights [K, N] with a scale for each group of K, in the type of activations.

    A zero point is a matrix of rank G: the sums of each group's inputs times its zeros.
    """
    layers = lowering.layers
    # The builder fuses no product of one group: a scale that all inputs share is there twice.
    groups = max(weight.num_in // weight.group, 2)
    values = weight.constant(
        "values",
        (1, weight.num_in, weight.num_out),
        "int4",
        lambda elements, rounding: pack_nibbles(np.ascontiguousarray(elements.values.T), 1).view(
            np.uint8
        ),
    )

    def grouped(array: Array | None) -> Array:
        assert array is not None, weight.name
        # A scale of a whole row is repeated: the builder has kernels of blocks only.
        repeated = np.repeat(array, groups // array.shape[1], axis=1)
        return np.ascontiguousarray(repeated.T).astype(numpy_dtype(lowering.dtype))

    scales = weight.constant(
        "scales",
        (1, groups, weight.num_out),
        lowering.dtype,
        lambda elements, rounding: grouped(elements.scale),
    )
    matrix = layers.dequantize(values, scales, lowering.dtype)
    y = layers.matmul(x, matrix)
    if weight.form.config.get("has_zero_point"):
        zeros = weight.constant(
            "zeros",
            (1, groups, weight.num_out),
            lowering.dtype,
            lambda elements, rounding: grouped(elements.zero)[None],
        )
        # [B, S, K] → [B, S, G, group] → [B, S, G]
        sums = layers.reduce("SUM", layers.split_last(x, groups), 3)
        y = layers.binary("SUM", y, layers.matmul(layers.reshape(sums, (0, 0, groups)), zeros))
    return y


def _nvfp4(lowering: Lowering, x: Tensor, weight: QuantizedWeight) -> Tensor:
    """e2m1 weights [N, K]; inputs are rounded with a scale for each block, found as they come.

    Blocks follow from the shapes: where `block_shape` names them, or a scale has another type than
    activations, the builder dequantizes first and multiplies in 16 bits.
    """
    layers, trt = lowering.layers, lowering.layers.trt
    scale = weight.constant("input_scale", (), "float32", _input_scale)
    layer = layers.network.add_dynamic_quantize(
        x, 2, nvfp4.BLOCK, trt.DataType.FP4, trt.DataType.FP8
    )
    layers.named(layer, "round").set_input(1, scale)
    blocks = layers.dequantize(layer.get_output(1), scale, lowering.dtype)
    rounded = layers.dequantize(layer.get_output(0), blocks, lowering.dtype)
    num_out, num_in = weight.num_out, weight.num_in
    values = weight.constant("values", (1, num_out, num_in), "float4_e2m1", _fp4_codes)
    whole = weight.constant("scale", (), "float32", _fp4_whole)
    of_blocks = weight.constant(
        "block_scales", (1, num_out, num_in // nvfp4.BLOCK), "float8_e4m3fn", _fp4_blocks
    )
    wide = layers.dequantize(of_blocks, whole, lowering.dtype)
    matrix = layers.dequantize(values, wide, lowering.dtype)
    return layers.matmul(rounded, matrix, transpose_b=True)


def _fp4_codes(elements: Elements, rounding: InputRounding) -> Array:
    codes = nvfp4.codes_of(elements.values)
    return codes[:, ::2] | (codes[:, 1::2] << 4)


def _fp4_whole(elements: Elements, rounding: InputRounding) -> Array:
    # The largest block has the largest scale e4m3 can hold.
    return np.array(elements.scale.max() / fp8.MAX, np.float32)


def _fp4_blocks(elements: Elements, rounding: InputRounding) -> Array:
    return (elements.scale / _fp4_whole(elements, rounding)).astype(fp8.E4M3)


FORMATS: dict[str, Callable[[Lowering, Tensor, QuantizedWeight], Tensor]] = {
    "W8A16": _eight_bits("int8"),
    "W4A16": _four_bits,
    "W4A16_AWQ": _four_bits,
    "W4A16_GPTQ": _four_bits,
    "W8A8_SQ_PER_CHANNEL": _eight_bits("int8"),
    "W8A8_SQ_PER_TENSOR_PLUGIN": _eight_bits("int8"),
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN": _eight_bits("int8"),
    "FP8": _eight_bits("float8_e4m3fn"),
    "NVFP4": _nvfp4,
}
"""quant_algo → how its product is written."""
