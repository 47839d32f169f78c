"""CPU lowering of `wide_qk_norm`."""

from typing import Any

import numpy as np

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall


def unsupported(call: OpCall) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    attrs: dict[str, Any] = call.attrs
    heads, kv_heads, size = attrs["num_heads"], attrs["num_kv_heads"], attrs["head_size"]
    tensors = []
    for role, count in (("q_weight", heads), ("k_weight", kv_heads)):
        weight = lowering.read(call.weights[role]).astype(np.float32)
        assert weight.shape == (count * size,), (call.name, weight.shape)
        tensors.append(lowering.write(f"{call.name}.{role}", weight))
    lowering.add_value(
        call.outputs[0], lowering.rows(call.inputs[0]), (heads + 2 * kv_heads) * size
    )
    return [
        CpuOp(
            kind="wide_qk_norm",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            dims=(heads, kv_heads, size, attrs["total_heads"], attrs["total_kv_heads"]),
            params=(attrs["epsilon"],),
            tensors=tuple(tensors),
        )
    ]
