"""What the checkpoint stores of experts; read alike by the lowerings and the reference.

Legend: E experts of the rank.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy.typing as npt

from llmc.plugins.graph import OpCall
from llmc.plugins.linear.quantized import InputRounding, interpret
from llmc.plugins.moe.spec import QUANTS, STORED_ROLES
from llmc.quant import layouts
from llmc.quant.format import EXPERTS_SHARE, Elements, load_format

Arrays = Mapping[str, npt.NDArray[Any]]


def expert_reasons(call: OpCall, activations: Collection[str]) -> list[str]:
    """Return why a lowering that knows `activations` cannot have the experts of a `moe` call."""
    attrs: dict[str, Any] = call.attrs
    quant, reasons = attrs["quant"], []
    if attrs["activation"] not in activations:
        known = ", ".join(activations)
        reasons.append(f"{call.name}: activation {attrs['activation']!r}, expected one of {known}")
    if quant not in ("none", *QUANTS):
        known = ", ".join(QUANTS)
        return [*reasons, f"{call.name}: experts of quantization {quant!r}, expected {known}"]
    if quant != "none":
        form, stored = load_format(quant), attrs["stored_quantized"]
        if form.needs_layout and stored and attrs["layout"] is None:
            reasons.append(f"{call.name}: {quant} weights and no layout they are permuted for")
        if form.in_checkpoint == "quantized" and not stored:
            reasons.append(f"{call.name}: {quant}, expected a checkpoint that is quantized already")
    return reasons


def stored_roles(product: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `weights` that a format stores beside the weight of "fc" or "proj"."""
    return {
        role: weights[f"{product}_{role}"]
        for role in STORED_ROLES
        if weights.get(f"{product}_{role}") is not None
    }


def interpret_expert(
    quant: str, layout: str | None, weight: npt.NDArray[Any], stacked: Arrays, expert: int
) -> tuple[Elements, InputRounding]:
    """Return what one expert's stored weight means, and how all experts' input is rounded.

    `stacked` are the other roles' tensors, [E, ...] but for those that EXPERTS_SHARE.
    """
    form = load_format(quant)
    if layout is not None and form.needs_layout:
        # With an axis of experts in front: theirs differ from plain linears' on some GPUs.
        weight = layouts.restore(weight[None], layout, bits=form.weight_bits)[0]
    own = {
        role: [array if role in EXPERTS_SHARE else array[expert]] for role, array in stacked.items()
    }
    return interpret(quant, None, {"weight": [weight], **own})
