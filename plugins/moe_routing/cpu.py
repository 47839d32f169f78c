"""CPU lowering of `moe_routing`."""

from typing import Any

import numpy as np

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall

_SCORING = {"softmax": 0, "sigmoid": 1}
_GROUP_SCORES = {"max": 0, "top2_sum": 1}


def unsupported(call: OpCall) -> list[str]:
    reasons = []
    for key, known in (("scoring", _SCORING), ("group_score", _GROUP_SCORES)):
        if call.attrs[key] not in known:
            reasons.append(
                f"{call.name}: {key} {call.attrs[key]!r}, expected one of {', '.join(known)}"
            )
    return reasons


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    attrs: dict[str, Any] = call.attrs
    correction = None
    if "correction_bias" in call.weights:
        values = lowering.read(call.weights["correction_bias"]).astype(np.float32)
        correction = lowering.write(f"{call.name}.correction_bias", values)
    lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), 2 * attrs["top_k"])
    return [
        CpuOp(
            kind="moe_routing",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            dims=(
                attrs["num_experts"],
                attrs["top_k"],
                attrs["num_groups"],
                attrs["top_groups"],
                _SCORING[attrs["scoring"]],
                _GROUP_SCORES[attrs["group_score"]],
                int(attrs["renormalize"]),
            ),
            params=(attrs["scaling_factor"], attrs["renormalize_epsilon"]),
            tensors=(correction,),
        )
    ]
