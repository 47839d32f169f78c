"""The MLP block of many experts: what routes tokens to them, their sum, and a shared expert's.

Ranks hold whole experts (moe_ep), a slice of each (moe_tp), or both. Every rank routes every token
and adds up what its own experts say; one sum over the ranks is then the block's output.
"""

from typing import Any

from llmc.arch import MoeArch
from llmc.builders.network.writer import Writer
from llmc.plugins.graph import Attr

_EPSILON = 1e-20
"""Keeps sigmoid scores that are all zero from being divided by zero, as DeepSeek-V3 does."""


def experts(writer: Writer, local: int, value: str) -> str:
    """Write the experts of a layer; `local` counts inside the stage, as tensor names do."""
    arch, module = writer.arch, f"transformer.layers.{local}.mlp"
    moe = arch.moe
    assert moe is not None, arch.architecture
    out = _routed(writer, moe, module, value, _routing(writer, moe, module, value))
    if moe.shared_expert_intermediate_size:
        shared = _shared(writer, moe, module, value)
        out = writer.add(f"{module}.sum", out, shared, 1.0)
    return writer.allreduce(f"{module}.allreduce", out, arch.hidden_size)


def _routing(writer: Writer, moe: MoeArch, module: str, value: str) -> str:
    logits = writer.linear(
        (f"{module}.router",),
        value,
        in_features=writer.arch.hidden_size,
        out_features=moe.num_experts,
        bias=moe.router_bias,
    )
    attrs: dict[str, Attr] = {
        "num_experts": moe.num_experts,
        "top_k": moe.top_k,
        "scoring": moe.scoring,
        "num_groups": moe.num_groups,
        "top_groups": moe.top_groups,
        "group_score": moe.group_score,
        "renormalize": moe.renormalize,
        "renormalize_epsilon": _EPSILON if moe.scoring == "sigmoid" else 0.0,
        "scaling_factor": moe.routed_scaling_factor,
    }
    weights = {}
    if moe.score_correction_bias:
        weights["correction_bias"] = (f"{module}.e_score_correction_bias",)
    return writer.call("moe_routing", f"{module}.routing", (logits,), attrs, weights)


def _routed(writer: Writer, moe: MoeArch, module: str, value: str, routing: str) -> str:
    mapping = writer.mapping
    per_rank = moe.num_experts // mapping.moe_ep
    clamped = moe.swiglu_limit is not None
    attrs: dict[str, Attr] = {
        "hidden_size": writer.arch.hidden_size,
        "intermediate_size": moe.intermediate_size // mapping.moe_tp,
        "num_experts": per_rank,
        "first_expert": mapping.moe_ep_rank * per_rank,
        "top_k": moe.top_k,
        "activation": "clamped_swiglu" if clamped else writer.arch.activation,
        "alpha": moe.swiglu_alpha if clamped else None,
        "limit": moe.swiglu_limit,
    }
    attrs |= writer.quantization_attrs(f"{module}.fc")
    weights: dict[str, Any] = {}
    for product in ("fc", "proj"):
        tensors = writer.linear_weights((f"{module}.{product}",))
        weights |= {f"{product}_{role}": names for role, names in tensors.items()}
        # Every slice of an expert ends in a sum over the slices, which has the bias once.
        if moe.expert_bias and (product == "fc" or mapping.moe_tp_rank == 0):
            weights[f"{product}_bias"] = (f"{module}.{product}.bias",)
    return writer.call("moe", f"{module}.experts", (value, routing), attrs, weights)


def _shared(writer: Writer, moe: MoeArch, module: str, value: str) -> str:
    """The expert that every token goes to, split over all ranks as a dense MLP is."""
    name, hidden = f"{module}.shared_expert", writer.arch.hidden_size
    inner = moe.shared_expert_intermediate_size // writer.mapping.tp_size
    product = writer.linear(
        (f"{name}.fc",), value, in_features=hidden, out_features=2 * inner, bias=False
    )
    attrs: dict[str, Attr] = {
        "activation": writer.arch.activation,
        "intermediate_size": inner,
        "activated_half": 1,
    }
    activated = writer.call("gated_activation", f"{name}.activation", (product,), attrs)
    out = writer.linear(
        (f"{name}.proj",), activated, in_features=inner, out_features=hidden, bias=False
    )
    if not moe.shared_expert_gate:
        return out
    gate = writer.linear((f"{name}_gate",), value, in_features=hidden, out_features=1, bias=False)
    return writer.call("sigmoid_gate", f"{name}.gated", (out, gate), {"hidden_size": hidden})
