"""Spec of `gated_activation`: the product of the two halves of x, one of them activated."""

from llmc.plugins.activation.spec import ACTIVATIONS
from llmc.plugins.graph import Attribute, OpSpec

SPEC = OpSpec(
    name="gated_activation",
    inputs={"x": ("T", "2 * intermediate_size")},
    outputs={"y": ("T", "intermediate_size")},
    attributes={
        "intermediate_size": Attribute(types=(int,), meaning="columns of y on this rank"),
        "activation": Attribute(types=(str,), meaning=f"one of {', '.join(ACTIVATIONS)}"),
        "activated_half": Attribute(
            types=(int,),
            meaning="0: act(first) * second; 1: first * act(second), as TensorRT-LLM lays out a"
            " fused fc",
        ),
    },
)
