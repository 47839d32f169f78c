"""Spec of `add`: a + scale * b."""

from llmc.plugins.graph import Attribute, OpSpec

SPEC = OpSpec(
    name="add",
    inputs={"a": ("T", "hidden_size"), "b": ("T", "hidden_size")},
    outputs={"out": ("T", "hidden_size")},
    attributes={
        "hidden_size": Attribute(types=(int,), meaning="columns"),
        "scale": Attribute(types=(float,), meaning="factor of b; 1.0 for a plain sum"),
    },
)
