"""CPU lowering of `attention`: one kernel rotates and writes the cache, one attends."""

from typing import Any

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import KV_CACHE, CpuOp
from llmc.plugins.graph import OpCall
from llmc.plugins.rope import rope_tables

MAX_HEAD_SIZE = 512
"""What a thread's scratch memory and the kernel's tiles are sized for."""


def unsupported(call: OpCall) -> list[str]:
    head_size = call.attrs["head_size"]
    assert isinstance(head_size, int)
    if head_size > MAX_HEAD_SIZE:
        return [f"{call.name}: head_size {head_size}, expected at most {MAX_HEAD_SIZE}"]
    return []


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    attrs: dict[str, Any] = call.attrs
    heads, kv_heads, size = attrs["num_heads"], attrs["num_kv_heads"], attrs["head_size"]
    cos, sin = rope_tables(
        rotary_base=attrs["rotary_base"],
        rotary_dim=attrs["rotary_dim"],
        rotary_scaling=attrs["rotary_scaling"],
        max_position_embeddings=attrs["max_position_embeddings"],
        num_positions=lowering.max_seq_len,
    )
    # Every layer has the same tables: `write` keeps the first of a name.
    kv_scale = 1.0
    if "kv_cache_scaling_factor" in call.weights:
        kv_scale = float(lowering.read(call.weights["kv_cache_scaling_factor"]).reshape(-1)[0])
    tables = (lowering.write("rope.cos", cos), lowering.write("rope.sin", sin), KV_CACHE)
    lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), heads * size)
    shape = (heads, kv_heads, size, attrs["rotary_dim"], lowering.tokens_per_block)
    return [
        CpuOp(
            kind="rope_kv",
            name=f"{call.name}.rope_kv",
            inputs=call.inputs,
            outputs=(),
            type=lowering.kv_dtype,
            dims=shape,
            params=(1 / kv_scale,),
            tensors=tables,
            layer=attrs["layer"],
        ),
        CpuOp(
            kind="attention",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            type=lowering.kv_dtype,
            dims=(*shape, attrs["sliding_window"] or 0),
            params=(attrs["scale"] * kv_scale, kv_scale),
            tensors=tables,
            layer=attrs["layer"],
        ),
    ]
