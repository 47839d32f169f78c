"""Spec of `linear`: y = x @ weight.T + bias.

The weight is [out_features, in_features] in the model's dtype whatever `quant` says (the portable
form of a TensorRT-LLM checkpoint: quantized at build). `quant` is "none" or a TensorRT-LLM
quant_algo; the meaning of the op is then the product with the dequantized weight.
"""

from llmc.plugins.graph import Attribute, OpSpec, WeightRole

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
    },
    weights={
        "weight": WeightRole(shape=("out_features", "in_features")),
        "bias": WeightRole(shape=("out_features",), optional=True),
    },
)
