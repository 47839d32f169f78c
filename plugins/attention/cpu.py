"""CPU lowering of `attention`: one kernel rotates and writes the cache, one attends."""

import hashlib
import json
from typing import Any

import numpy as np

from llmc.plugins.alibi import alibi_slopes
from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import KV_CACHE, CpuOp
from llmc.plugins.graph import OpCall
from llmc.plugins.rope import length_dependence, tables_by_length

MAX_HEAD_SIZE = 512
"""What a thread's scratch memory and the kernel's tiles are sized for."""
_STYLES = {"none": 0, "neox": 1, "gptj": 2}
"""rope_style → plugins/attention/csrc/rope_kv.cpp."""


def unsupported(call: OpCall) -> list[str]:
    attrs: dict[str, Any] = call.attrs
    head_size, style = attrs["head_size"], attrs["rope_style"]
    reasons = []
    if head_size > MAX_HEAD_SIZE:
        reasons.append(f"{call.name}: head_size {head_size}, expected at most {MAX_HEAD_SIZE}")
    if style not in _STYLES:
        reasons.append(f"{call.name}: rope_style {style!r}, expected one of {', '.join(_STYLES)}")
    return reasons


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    attrs: dict[str, Any] = call.attrs
    heads, kv_heads, size = attrs["num_heads"], attrs["num_kv_heads"], attrs["head_size"]
    kv_scale = 1.0
    if "kv_cache_scaling_factor" in call.weights:
        kv_scale = float(lowering.read(call.weights["kv_cache_scaling_factor"]).reshape(-1)[0])
    lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), heads * size)
    shape = (heads, kv_heads, size, attrs["rotary_dim"], lowering.tokens_per_block)
    slopes, sinks = _head_vectors(call, lowering)
    alibi = attrs["alibi"]
    return [
        CpuOp(
            kind="rope_kv",
            name=f"{call.name}.rope_kv",
            inputs=call.inputs,
            outputs=(),
            type=lowering.kv_dtype,
            dims=(*shape, _STYLES[attrs["rope_style"]], *_changes(attrs)),
            params=(
                1 / kv_scale,
                attrs["rotary_base"],
                (attrs["rotary_scaling"] or {}).get("factor") or 0.0,
            ),
            tensors=(*_rope_tensors(call, lowering), KV_CACHE),
            layer=attrs["layer"],
        ),
        CpuOp(
            kind="attention",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            type=lowering.kv_dtype,
            dims=(
                *shape,
                attrs["sliding_window"] or 0,
                0 if alibi is None else 2 if alibi["scaled"] else 1,
            ),
            params=(attrs["scale"] * kv_scale, kv_scale, attrs["softcap"] or 0.0, attrs["scale"]),
            tensors=(slopes, sinks, KV_CACHE),
            layer=attrs["layer"],
        ),
    ]


def _rope_tensors(call: OpCall, lowering: Lowering) -> tuple[str | None, str | None]:
    """Write cos and sin once for all layers that turn alike."""
    attrs: dict[str, Any] = call.attrs
    if attrs["rope_style"] == "none":
        return None, None
    keys = ("rotary_base", "rotary_dim", "rotary_scaling", "max_position_embeddings")
    settings = {key: attrs[key] for key in keys}
    cos, sin = tables_by_length(**settings, num_positions=lowering.max_seq_len)
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return lowering.write(f"rope.{digest}.cos", cos), lowering.write(f"rope.{digest}.sin", sin)


def _changes(attrs: dict[str, Any]) -> tuple[int, int]:
    """Return the original length, 0 if none matters, and whether each length beyond has its own
    angles."""
    if attrs["rope_style"] == "none":
        return 0, 0
    changes = length_dependence(attrs["rotary_scaling"], attrs["max_position_embeddings"])
    return (0, 0) if changes is None else (changes.original, int(changes.each))


def _head_vectors(call: OpCall, lowering: Lowering) -> tuple[str | None, str | None]:
    """Write what each head adds to its scores: the ALiBi slope and the sink."""
    alibi, num_heads = call.attrs["alibi"], call.attrs["num_heads"]
    assert isinstance(num_heads, int)
    slopes = sinks = None
    if alibi is not None:
        assert isinstance(alibi, dict)
        slopes = lowering.write("alibi.slopes", alibi_slopes(alibi, num_heads))
    if "sinks" in call.weights:
        vector = lowering.read(call.weights["sinks"]).astype(np.float32)
        sinks = lowering.write(f"{call.name}.sinks", vector)
    return slopes, sinks
