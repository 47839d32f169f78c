"""CPU lowering of `moe`: tokens sorted by expert, two products of groups of rows, a sum.

Every expert's weight is packed as `linear` packs one, all of them one after the other in one
tensor; a step reads those of the experts some token goes to.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.dtypes import dtype_name
from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall
from llmc.plugins.linear.cpu import MAX_IN_FEATURES
from llmc.plugins.linear.quantized import InputRounding
from llmc.plugins.moe.stored import expert_reasons, interpret_expert, stored_roles
from llmc.plugins.panels import (
    PANEL,
    interleave_halves,
    pack_nibble_panels,
    pack_panels,
    pad_columns,
    padded,
)
from llmc.quant.format import Choice, Elements, load_format

Array = npt.NDArray[Any]

_GATES = {"silu": 0, "gelu_tanh": 1, "clamped_swiglu": 2}
"""Activation → Gate of plugins/moe/csrc/gates.h."""

_ROUND_E4M3 = 2
"""E4M3 of plugins/linear/csrc/round_rows.cpp."""


def unsupported(call: OpCall) -> list[str]:
    attrs: dict[str, Any] = call.attrs
    reasons = expert_reasons(call, _GATES)
    widest = max(attrs["hidden_size"], attrs["intermediate_size"])
    if widest > MAX_IN_FEATURES:
        reasons.append(f"{call.name}: {widest} columns, expected at most {MAX_IN_FEATURES}")
    return reasons


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    attrs: dict[str, Any] = call.attrs
    x, routing = call.inputs
    top_k, experts = attrs["top_k"], (attrs["first_expert"], attrs["num_experts"])
    pairs = f"{call.name}.group:out"
    # Sorted pairs take three columns a choice and three (plugins/moe/csrc/assignments.h).
    lowering.add_value(pairs, lowering.rows(x), 3 * top_k + 3)
    ops = [
        CpuOp(
            kind="moe_group",
            name=f"{call.name}.group",
            inputs=(routing,),
            outputs=(pairs,),
            dims=(top_k, *experts),
        )
    ]
    ops += _Product(call, lowering, "fc").lower(x, pairs)
    ops += _Product(call, lowering, "proj").lower(ops[-1].outputs[0], pairs)
    lowering.add_value(call.outputs[0], lowering.rows(x), attrs["hidden_size"])
    combine = CpuOp(
        kind="moe_combine",
        name=call.name,
        inputs=(ops[-1].outputs[0], routing),
        outputs=call.outputs,
        dims=(attrs["hidden_size"], top_k, *experts),
    )
    return [*ops, combine]


class _Product:
    """One of the two products: every expert's weight in panels, and the ops that use them."""

    def __init__(self, call: OpCall, lowering: Lowering, product: str) -> None:
        attrs: dict[str, Any] = call.attrs
        self.call, self.lowering, self.product, self.attrs = call, lowering, product, attrs
        self.gated = product == "fc"
        hidden, inner = attrs["hidden_size"], attrs["intermediate_size"]
        self.num_in, self.columns = (hidden, inner) if self.gated else (inner, hidden)
        self.num_out = 2 * inner if self.gated else hidden
        self.name = f"{call.name}.{product}"
        self.rounding = InputRounding()
        self.type = "float32"
        self.scales: list[npt.NDArray[np.float32]] = []

    def lower(self, value: str, pairs: str) -> list[CpuOp]:
        """Return the ops from `value` to this product's output, weights written."""
        attrs, lowering = self.attrs, self.lowering
        panels = lowering.write_parts(f"{self.name}.weight", attrs["num_experts"], self._packed())
        bias = None
        if f"{self.product}_bias" in self.call.weights:
            (name,) = self.call.weights[f"{self.product}_bias"]
            rows = lowering.read((name,)).astype(np.float32)
            bias = self._vectors("bias", [self._arranged(row) for row in rows])
        scale = self._vectors("scale", self.scales) if self.scales else None
        rounded = self._round(value)
        source = rounded[0].outputs[0] if rounded else value
        output = f"{self.name}:out"
        lowering.add_value(output, lowering.rows(value), attrs["top_k"] * self.columns)
        num_panels = padded(self._arranged(np.empty((self.num_out, 0), np.int8)).shape[0]) // PANEL
        gate = _GATES[attrs["activation"]]
        product = CpuOp(
            kind="moe_linear",
            name=self.name,
            inputs=(source, pairs),
            outputs=(output,),
            type=self.type,
            gated=self.gated,
            # No groups of scales: the formats of QUANTS have one per column or per weight.
            dims=(self.num_in, self.columns, num_panels, 0, 0, attrs["top_k"], int(not self.gated))
            + (gate,),
            params=(attrs["alpha"] or 0.0, attrs["limit"] or 0.0),
            tensors=(panels, scale, bias),
        )
        return [*rounded, product]

    def _packed(self) -> "map[Array]":
        """Return each expert's panels, one expert at a time; its scales are kept for later."""
        attrs, lowering = self.attrs, self.lowering
        (name,) = self.call.weights[f"{self.product}_weight"]
        roles = stored_roles(self.product, self.call.weights)
        stacked = {role: lowering.read(names) for role, names in roles.items()}

        def pack(expert: int) -> Array:
            weight = lowering.read_part(name, expert)
            if attrs["quant"] == "none":
                self.type = dtype_name(weight.dtype)
                return self._panels(weight, pack_panels)
            elements = self._elements(weight, stacked, expert)
            fixed = np.float32(self.rounding.scale or 1.0)
            scale = np.broadcast_to(elements.scale[:, 0] * fixed, (self.num_out,))
            self.scales.append(self._arranged(np.ascontiguousarray(scale)))
            if elements.values.dtype != np.int8:
                self.type = "float8_e4m3fn"
                return self._panels(elements.values.view(np.int8), pack_panels)
            four_bits = load_format(attrs["quant"]).weight_bits == 4
            self.type = "int4" if four_bits else "int8"
            return self._panels(elements.values, pack_nibble_panels if four_bits else pack_panels)

        return map(pack, range(attrs["num_experts"]))

    def _elements(self, weight: Array, stacked: Mapping[str, Array], expert: int) -> Elements:
        quant, layout = self.attrs["quant"], self.attrs["layout"]
        if not self.attrs["stored_quantized"]:
            return load_format(quant).encode(weight, Choice(dtype=self.lowering.dtype))
        elements, self.rounding = interpret_expert(quant, layout, weight, stacked, expert)
        return elements

    def _panels(self, weight: Array, pack: Callable[[Array], Array]) -> Array:
        assert weight.shape == (self.num_out, self.num_in), (self.name, weight.shape)
        return pack(self._arranged(weight))

    def _arranged(self, rows: Array) -> Array:
        """Put the activated half of fc's rows first and interleave it with the other."""
        if not self.gated:
            return rows
        half = rows.shape[0] // 2
        return interleave_halves(np.concatenate([rows[half:], rows[:half]]))

    def _vectors(self, role: str, parts: list[npt.NDArray[np.float32]]) -> str:
        stacked = np.stack([pad_columns(part) for part in parts])
        return self.lowering.write(f"{self.name}.{role}", stacked)

    def _round(self, value: str) -> list[CpuOp]:
        """Round the input, where the format wants that: with one scale for all rows."""
        if self.rounding.does_nothing:
            return []
        assert self.rounding.number == "e4m3" and self.rounding.scale is not None
        columns = self.num_in if self.gated else self.attrs["top_k"] * self.num_in
        output = f"{self.name}.input:out"
        self.lowering.add_value(output, self.lowering.rows(value), columns)
        return [
            CpuOp(
                kind="round_rows",
                name=f"{self.name}.input",
                inputs=(value,),
                outputs=(output,),
                dims=(columns, _ROUND_E4M3, 0),
                params=(float(np.float32(1) / np.float32(self.rounding.scale)), 0.0),
                tensors=(None, None),
            )
        ]
