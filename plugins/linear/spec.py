"""Spec of `linear`: y = x @ weight.T + bias.

`quant` is "none" or a TensorRT-LLM quant_algo. Where `stored_quantized` is false the weight is
[out_features, in_features] in the model's dtype, and is rounded to the format first. Where it is
true, the tensors of each module are those that llmc.quant declares for the format, permuted for
`layout` if the format needs one; several modules stand one after the other on the output axis, and
their inputs are rounded alike. The meaning of the op is the product of the input, scaled and
rounded as the format says, with the dequantized weight.
"""

from llmc.plugins.graph import Attribute, OpSpec, WeightRole

_OF_FORMATS = (
    # Their shapes are the format's to say (llmc.quant).
    "per_channel_scale",
    "weights_scaling_factor",
    "weights_scaling_factor_2",
    "zero",
    "prequant_scaling_factor",
    "activation_scaling_factor",
    "act_scale",
    "scale_to_int",
    "smoother",
    "clamp_val",
)

SPEC = OpSpec(
    name="linear",
    inputs={"x": ("T", "in_features")},
    outputs={"y": ("T", "out_features")},
    attributes={
        "in_features": Attribute(types=(int,), meaning="columns of x on this rank"),
        "out_features": Attribute(
            types=(int,), meaning="columns of y on this rank, all parts together"
        ),
        "quant": Attribute(types=(str,), meaning='"none" or the quant_algo of the weight'),
        "stored_quantized": Attribute(
            types=(bool,), meaning="whether the checkpoint holds the format's tensors"
        ),
        "layout": Attribute(
            types=(str, type(None)), meaning="what stored weights are permuted for, if anything"
        ),
    },
    weights={
        "weight": WeightRole(shape=("out_features", "in_features")),
        "bias": WeightRole(shape=("out_features",), optional=True),
        **{role: WeightRole(shape=(), optional=True) for role in _OF_FORMATS},
    },
)
