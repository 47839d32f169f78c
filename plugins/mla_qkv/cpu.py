"""CPU lowering of `mla_qkv`: k and v, then q into the same rows."""

from typing import Any

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall


def unsupported(call: OpCall) -> list[str]:
    attrs: dict[str, Any] = call.attrs
    size = attrs["nope_size"] + attrs["rope_size"]
    if attrs["value_size"] <= size:
        return []
    return [f"{call.name}: {attrs['value_size']} columns of v, expected at most {size}, as of k"]


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    attrs: dict[str, Any] = call.attrs
    q, kv, rope = call.inputs
    (output,) = call.outputs
    sizes = (attrs["num_heads"], attrs["nope_size"], attrs["rope_size"], attrs["value_size"])
    columns = 3 * attrs["num_heads"] * (attrs["nope_size"] + attrs["rope_size"])
    lowering.add_value(output, lowering.rows(q), columns)
    return [
        CpuOp(
            kind="mla_qkv",
            name=f"{call.name}.kv",
            inputs=(kv, rope),
            outputs=(output,),
            dims=(*sizes, 0),
        ),
        CpuOp(
            kind="mla_qkv",
            name=f"{call.name}.q",
            inputs=(q, output),
            outputs=(),
            dims=(*sizes, 1),
        ),
    ]
