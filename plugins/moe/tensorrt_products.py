"""The two products of a run of experts in TensorRT, one function for each way scales allow.

A product of many experts has one weight. Where experts share no scale but have one for each of
their rows, the first product keeps all of them; the second, whose sum goes over the experts, keeps
them with scales of groups (W4A16) and not with scales of rows: there the builder has one product of
an expert by itself (W8A16), or one of a batch whose results are scaled apart (FP8).

Legend: B slots, S tokens of each, T = B S, n experts of the run, H hidden_size,
I intermediate_size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.dtypes import numpy_dtype
from llmc.plugins.graph import OpCall
from llmc.plugins.linear.quantized import InputRounding
from llmc.plugins.linear.tensorrt_quantized import (
    QuantizedWeight,
    product,
    round_input,
    wide_group,
)
from llmc.plugins.moe.stored import interpret_expert, stored_roles
from llmc.plugins.tensorrt_lowering import Lowering, Tensor
from llmc.quant.format import Choice, Elements, load_format

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Some neighbouring experts of a call; `experts` are counted within the rank."""

    call: OpCall
    lowering: Lowering
    experts: range

    @property
    def attrs(self) -> dict[str, Any]:
        return self.call.attrs

    def name(self, role: str) -> str:
        """Return the name of a constant made of the run's part of a stacked tensor."""
        (stacked,) = self.call.weights[role]
        return f"{stacked}[{self.experts.start}:{self.experts.stop}]"

    def read(self, role: str) -> Array:
        """Return the run's part of a stacked tensor, [n, ...], in the type of activations."""
        part = self.lowering.read(self.call.weights[role])[self.experts.start : self.experts.stop]
        return part.astype(numpy_dtype(self.lowering.dtype), copy=False)

    def elements(self, which: str) -> tuple[list[Elements], InputRounding]:
        """Return each expert's numbers of "fc" or "proj", a scale for each row, and the rounding
        of their input."""
        attrs, lowering = self.attrs, self.lowering
        quant = attrs["quant"]
        (name,) = self.call.weights[f"{which}_weight"]
        weights = lowering.read((name,))
        roles = stored_roles(which, self.call.weights)
        stacked = {role: lowering.read(names) for role, names in roles.items()}
        found, rounding = [], InputRounding()
        for expert in self.experts:
            if attrs["stored_quantized"]:
                one, rounding = interpret_expert(
                    quant, attrs["layout"], weights[expert], stacked, expert
                )
            else:
                one = load_format(quant).encode(weights[expert], Choice(dtype=lowering.dtype))
            shape = (one.values.shape[0], one.scale.shape[1])
            found.append(Elements(values=one.values, scale=np.broadcast_to(one.scale, shape)))
        return found, rounding

    def add_first_bias(self, y: Tensor) -> Tensor:
        """Return y [B, S, 2 n I] plus the experts' biases of fc, if they have one."""
        if "fc_bias" not in self.call.weights:
            return y
        lowering, shape = self.lowering, (1, 1, y.shape[2])
        bias = lowering.weight(
            self.name("fc_bias"),
            shape,
            lowering.dtype,
            lambda: _halves([*self.read("fc_bias")]).reshape(shape),
        )
        return lowering.layers.binary("SUM", y, bias)

    def add_second_bias(self, y: Tensor, weights: Tensor) -> Tensor:
        """Return y [B, S, H] plus the biases of proj times weights [B, S, n], if there are any."""
        if "proj_bias" not in self.call.weights:
            return y
        lowering, shape = self.lowering, (1, len(self.experts), self.attrs["hidden_size"])
        bias = lowering.weight(
            self.name("proj_bias"),
            shape,
            lowering.dtype,
            lambda: self.read("proj_bias").reshape(shape),
        )
        return lowering.layers.binary("SUM", y, lowering.layers.matmul(weights, bias))


def _halves(experts: list[Array]) -> Array:
    """Return the first halves of all experts' rows, then the second halves."""
    pairs = [np.split(rows, 2) for rows in experts]
    return np.concatenate([half for place in (0, 1) for half in (pair[place] for pair in pairs)])


def first_product(run: Run, x: Tensor) -> Tensor:
    """Return [B, S, 2 n I] of x [B, S, H]: every expert's "up", then every expert's "gate"."""
    attrs, lowering = run.attrs, run.lowering
    num_out, num_in = 2 * len(run.experts) * attrs["intermediate_size"], attrs["hidden_size"]
    if attrs["quant"] == "none":
        shape = (1, num_out, num_in)
        weight = lowering.weight(
            run.name("fc_weight"),
            shape,
            lowering.dtype,
            lambda: _halves([*run.read("fc_weight")]).reshape(shape),
        )
        return lowering.layers.matmul(x, weight, transpose_b=True)

    # Of this and a plain product of the same x, the router, the builder makes one of 16 bits if
    # the weights are int8. Half of x is another x, and twice the scale gives the same product.
    apart_from_router = attrs["quant"] == "W8A16"

    def read() -> tuple[Elements, InputRounding]:
        parts, rounding = run.elements("fc")
        scale = _halves([part.scale for part in parts])
        scale = scale * np.float32(2 if apart_from_router else 1)
        return Elements(values=_halves([part.values for part in parts]), scale=scale), rounding

    if apart_from_router:
        x = lowering.layers.binary("PROD", x, lowering.layers.like(0.5, x))
    weight = QuantizedWeight(
        lowering=lowering,
        name=run.name("fc_weight"),
        quant=attrs["quant"],
        num_out=num_out,
        num_in=num_in,
        group=wide_group(num_in),
        read=read,
    )
    return product(x, weight)


def second_product(run: Run, gated: Tensor, weights: Tensor) -> Tensor:
    """Return [B, S, H] of gated [B, S, n I], the experts' results times weights [B, S, n]."""
    return _SECOND[run.attrs["quant"]](run, gated, weights)


def _weighted(run: Run, gated: Tensor, weights: Tensor) -> Tensor:
    """Return gated [B, S, n I], each expert's columns times its weight."""
    layers, count, inner = run.lowering.layers, len(run.experts), run.attrs["intermediate_size"]
    split = layers.split_last(gated, count)
    split = layers.binary("PROD", split, layers.reshape(weights, (0, 0, count, 1)))
    return layers.reshape(split, (0, 0, count * inner))


def _plain(run: Run, gated: Tensor, weights: Tensor) -> Tensor:
    lowering = run.lowering
    shape = (1, run.attrs["hidden_size"], gated.shape[2])
    weight = lowering.weight(
        run.name("proj_weight"),
        shape,
        lowering.dtype,
        lambda: run.read("proj_weight").transpose(1, 0, 2).reshape(shape),
    )
    return lowering.layers.matmul(_weighted(run, gated, weights), weight, transpose_b=True)


def _in_groups(run: Run, gated: Tensor, weights: Tensor) -> Tensor:
    """One product: an expert's columns are whole groups, with the scales of its rows."""

    def read() -> tuple[Elements, InputRounding]:
        parts, rounding = run.elements("proj")
        values = np.concatenate([part.values for part in parts], axis=1)
        scale = np.concatenate([part.scale for part in parts], axis=1)
        return Elements(values=values, scale=scale), rounding

    return product(_weighted(run, gated, weights), _proj(run, gated.shape[2], read))


def _apart(run: Run, gated: Tensor, weights: Tensor) -> Tensor:
    """A product for each expert: of a batch, the builder would dequantize the weights first."""
    layers, inner = run.lowering.layers, run.attrs["intermediate_size"]
    rows = _weighted(run, gated, weights)
    y = None
    for place, expert in enumerate(run.experts):
        alone = Run(call=run.call, lowering=run.lowering, experts=range(expert, expert + 1))

        def read(alone: Run = alone) -> tuple[Elements, InputRounding]:
            (elements,), rounding = alone.elements("proj")
            return elements, rounding

        part = product(layers.columns(rows, place * inner, inner), _proj(alone, inner, read))
        y = part if y is None else layers.binary("SUM", y, part)
    return y


def _batched(run: Run, gated: Tensor, weights: Tensor) -> Tensor:
    """A batch of products [n, T, I] × [n, I, H], with the largest scale of the experts for all.

    By scales of their own the builder would dequantize first. So an expert's weight in the sum is
    multiplied with what its scale is of the largest.
    """
    layers, count = run.lowering.layers, len(run.experts)
    hidden, inner = run.attrs["hidden_size"], run.attrs["intermediate_size"]

    def read() -> tuple[Elements, InputRounding]:
        parts, rounding = run.elements("proj")
        # One scale for the whole of an expert: [n, 1].
        scale = np.stack([part.scale.reshape(-1)[:1] for part in parts])
        return Elements(values=np.stack([part.values for part in parts]), scale=scale), rounding

    weight = _proj(run, inner, read)
    dtype = "float8_e4m3fn"
    largest = weight.constant("scale", (), "float32", lambda numbers, _: numbers.scale.max())
    shares = weight.constant(
        "shares",
        (1, 1, count),
        "float32",
        lambda numbers, _: (numbers.scale / numbers.scale.max()).reshape(1, 1, count),
    )
    values = weight.constant(
        "values", (count, hidden, inner), dtype, lambda numbers, _: numbers.values
    )
    rows = layers.reshape(gated, (-1, count, inner), transpose=(1, 0, 2))
    matrices = layers.dequantize(values, largest, run.lowering.dtype)
    y = layers.matmul(round_input(rows, weight, dtype), matrices, transpose_b=True)
    wide = layers.binary("PROD", layers.cast(weights, "float32"), shares)
    # [B, S, n] → [n, T, 1]
    each = layers.reshape(
        layers.cast(wide, run.lowering.dtype), (-1, count, 1), transpose=(1, 0, 2)
    )
    return layers.in_rows_of(layers.reduce("SUM", layers.binary("PROD", y, each), 0), gated, hidden)


def _proj(
    run: Run, num_in: int, read: Callable[[], tuple[Elements, InputRounding]]
) -> QuantizedWeight:
    return QuantizedWeight(
        lowering=run.lowering,
        name=run.name("proj_weight"),
        quant=run.attrs["quant"],
        num_out=run.attrs["hidden_size"],
        num_in=num_in,
        group=wide_group(run.attrs["intermediate_size"]),
        read=read,
    )


_SECOND: dict[str, Callable[[Run, Tensor, Tensor], Tensor]] = {
    "none": _plain,
    "W4A16": _in_groups,
    "W8A16": _apart,
    "FP8": _batched,
}
"""quant_algo of the experts → how their second product is written."""

APART = tuple(quant for quant, second in _SECOND.items() if second is _apart)
"""Formats of which every expert has a second product of its own."""
