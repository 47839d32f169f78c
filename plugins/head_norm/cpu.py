"""CPU lowering of `head_norm`."""

from typing import Any

import numpy as np

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall

_KINDS = {"rms_norm": 0, "layer_norm": 1}


def unsupported(call: OpCall) -> list[str]:
    kind = str(call.attrs["kind"])
    if kind in _KINDS:
        return []
    return [f"{call.name}: kind {kind!r}, expected one of {', '.join(_KINDS)}"]


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    attrs: dict[str, Any] = call.attrs
    heads, kv_heads, size = attrs["num_heads"], attrs["num_kv_heads"], attrs["head_size"]
    tensors = []
    for role, count in (("q_weight", heads), ("k_weight", kv_heads)):
        weight = lowering.read(call.weights[role]).astype(np.float32)
        assert weight.shape == ((count, size) if attrs["per_head"] else (size,)), call.name
        tensors.append(lowering.write(f"{call.name}.{role}", weight))
    lowering.add_value(
        call.outputs[0], lowering.rows(call.inputs[0]), (heads + 2 * kv_heads) * size
    )
    return [
        CpuOp(
            kind="head_norm",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            dims=(heads, kv_heads, size, _KINDS[attrs["kind"]], int(attrs["per_head"])),
            params=(attrs["epsilon"],),
            tensors=tuple(tensors),
        )
    ]
