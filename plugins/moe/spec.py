"""Spec of `moe`: the sum over a token's experts of weight * proj(gated(fc(x))).

`routing` is what `moe_routing` writes: expert numbers of the whole model, then weights. The rank
holds the experts [first_expert, first_expert + num_experts) or a slice of their intermediate
columns; choices of other experts count as 0, so that the ranks' outputs sum up to the whole.

Rows of fc are two halves, the multiplied ("up") first and the activated ("gate") second, which is
TensorRT-LLM's order. Activations: "silu" and "gelu_tanh" are act(gate) * up; "clamped_swiglu" is
g * sigmoid(alpha * g) * (u + 1) with g = min(gate, limit) and u = up within ±limit.

`quant`, `stored_quantized` and `layout` are those of `linear`, for every expert by itself; the
stored tensors of a format are stacked over the experts, the scale of the input excepted.
"""

from llmc.plugins.graph import Attribute, OpSpec, WeightRole

STORED_ROLES = ("per_channel_scale", "weights_scaling_factor", "activation_scaling_factor")
"""What the formats in QUANTS store beside a weight."""

QUANTS = ("W8A16", "W4A16", "FP8")
"""The formats TensorRT-LLM has experts in, among those llmc has. Source: NVIDIA/TensorRT-LLM 0.17
tensorrt_llm/layers/moe.py (weight-only and FP8 quant modes)."""

SPEC = OpSpec(
    name="moe",
    inputs={"x": ("T", "hidden_size"), "routing": ("T", "2 * top_k")},
    outputs={"y": ("T", "hidden_size")},
    attributes={
        "hidden_size": Attribute(types=(int,), meaning="columns of x"),
        "intermediate_size": Attribute(types=(int,), meaning="of an expert, on this rank"),
        "num_experts": Attribute(types=(int,), meaning="experts on this rank"),
        "first_expert": Attribute(types=(int,), meaning="number of the first of them"),
        "top_k": Attribute(types=(int,), meaning="experts each token goes to"),
        "activation": Attribute(types=(str,), meaning='"silu", "gelu_tanh" or "clamped_swiglu"'),
        "alpha": Attribute(types=(float, type(None)), meaning="of clamped_swiglu"),
        "limit": Attribute(types=(float, type(None)), meaning="of clamped_swiglu"),
        "quant": Attribute(types=(str,), meaning='"none" or the quant_algo of the weights'),
        "stored_quantized": Attribute(
            types=(bool,), meaning="whether the checkpoint holds the format's tensors"
        ),
        "layout": Attribute(
            types=(str, type(None)), meaning="what stored weights are permuted for, if anything"
        ),
    },
    weights={
        "fc_weight": WeightRole(shape=("num_experts", "2 * intermediate_size", "hidden_size")),
        "fc_bias": WeightRole(shape=("num_experts", "2 * intermediate_size"), optional=True),
        "proj_weight": WeightRole(shape=("num_experts", "hidden_size", "intermediate_size")),
        "proj_bias": WeightRole(shape=("num_experts", "hidden_size"), optional=True),
        **{
            f"{product}_{role}": WeightRole(shape=(), optional=True)
            for product in ("fc", "proj")
            for role in STORED_ROLES
        },
    },
)
