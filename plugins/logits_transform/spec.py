"""Spec of `logits_transform`: y = scale * x, then softcap * tanh(y / softcap) if there is one."""

from llmc.plugins.graph import Attribute, OpSpec

SPEC = OpSpec(
    name="logits_transform",
    inputs={"x": ("L", "columns")},
    outputs={"y": ("L", "columns")},
    attributes={
        "columns": Attribute(types=(int,), meaning="columns of x"),
        "scale": Attribute(types=(float,), meaning="factor; 1.0 for none"),
        "softcap": Attribute(types=(float, type(None)), meaning="bound that logits approach"),
    },
)
