"""A quantized linear's tensors as numbers: the weight's elements and how inputs are rounded.

Read alike by every lowering and by the reference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.errors import UnsupportedError
from llmc.quant import layouts
from llmc.quant.format import Elements, QuantFormat, QuantizedLinear, load_format

Floats = npt.NDArray[np.float32]
Tensors = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRounding:
    """What is done to x [T, in]: times `factor` [in], by `divisor` [in], within ±`bound`, rounded.

    `number` is "int8", "e4m3", "e2m1" or None: x is not rounded. `scale` is what numbers are to be
    multiplied with; None: each row has its own. With e2m1 it is the scale over all blocks.
    """

    number: str | None = None
    scale: float | None = 1.0
    bound: float | None = None
    factor: Floats | None = None
    divisor: Floats | None = None

    @property
    def does_nothing(self) -> bool:
        return self.number is None and self.factor is None and self.divisor is None


_NUMBERS = {
    "none": None,
    "static int8": "int8",
    "per-token int8": "int8",
    "static fp8": "e4m3",
    "per-token fp8": "e4m3",
    "nvfp4": "e2m1",
}


def interpret(
    quant: str, layout: str | None, tensors: Mapping[str, Sequence[npt.NDArray[Any]]]
) -> tuple[Elements, InputRounding]:
    """Return what stored tensors mean; of each role there is one for each module of the product.

    Raises: UnsupportedError when the modules want their input rounded differently.
    """
    form = load_format(quant)
    modules: list[Tensors] = [
        {role: of_modules[place] for role, of_modules in tensors.items()}
        for place in range(len(tensors["weight"]))
    ]
    roundings = [_input_rounding(form, tensors) for tensors in modules]
    if not all(_equal(roundings[0], other) for other in roundings[1:]):
        raise UnsupportedError(
            f"{quant}: the {len(modules)} modules of one product scale their input differently"
        )
    parts = [_elements(form, tensors, layout) for tensors in modules]
    return _join(parts), roundings[0]


def _elements(form: QuantFormat, tensors: Tensors, layout: str | None) -> Elements:
    if form.needs_layout and layout is not None:
        weight = layouts.restore(tensors["weight"], layout, bits=form.weight_bits)
        tensors = tensors | {"weight": weight}
    elements = form.unpack(QuantizedLinear(tensors=tensors))
    shape = (elements.values.shape[0], elements.scale.shape[1])
    return Elements(
        values=elements.values,
        scale=np.ascontiguousarray(np.broadcast_to(elements.scale, shape)),
        zero=elements.zero,
    )


def _join(parts: list[Elements]) -> Elements:
    if len(parts) == 1:
        return parts[0]
    zeros = [part.zero for part in parts if part.zero is not None]
    return Elements(
        values=np.concatenate([part.values for part in parts]),
        scale=np.concatenate([part.scale for part in parts]),
        zero=np.concatenate(zeros) if zeros else None,
    )


def _input_rounding(form: QuantFormat, tensors: Tensors) -> InputRounding:
    def vector(role: str) -> Floats | None:
        return tensors[role].astype(np.float32).reshape(-1) if role in tensors else None

    number = _NUMBERS[form.activation]
    scale: float | None = 1.0
    if form.activation.startswith("per-token"):
        scale = None
    elif "activation_scaling_factor" in tensors:
        scale = float(tensors["activation_scaling_factor"].reshape(-1)[0])
    elif number is not None:
        scale = float(np.float32(1) / tensors["scale_to_int"].reshape(-1)[0])
    bound = float(tensors["clamp_val"][1]) if "clamp_val" in tensors else None
    return InputRounding(
        number=number,
        scale=scale,
        bound=bound,
        factor=vector("prequant_scaling_factor"),
        divisor=vector("smoother"),
    )


def _equal(one: InputRounding, other: InputRounding) -> bool:
    return all(
        np.array_equal(getattr(one, item.name), getattr(other, item.name)) for item in fields(one)
    )
