"""Fused ops: one folder each with a spec, a torch reference and one lowering per target.

Public name → package in this room; `llmc.plugins.graph.part(name, "spec")` imports its spec.
"""

PLUGINS: dict[str, str] = {
    "embedding": "embedding",
    "rms_norm": "rms_norm",
    "linear": "linear",
    "attention": "attention",
    "gated_activation": "gated_activation",
    "add": "add",
    "moe_routing": "moe_routing",
    "moe": "moe",
    "sigmoid_gate": "sigmoid_gate",
    "gather_last": "gather_last",
    "layer_norm": "layer_norm",
    "head_norm": "head_norm",
    "qk_squares": "qk_squares",
    "wide_qk_norm": "wide_qk_norm",
    "activation": "activation",
    "position_embedding": "position_embedding",
    "logits_transform": "logits_transform",
    "clamp": "clamp",
    "mla_qkv": "mla_qkv",
    "take_columns": "take_columns",
    "allreduce": "allreduce",
    "allgather": "allgather",
    "send": "send",
    "recv": "recv",
}

__all__ = ["PLUGINS"]
