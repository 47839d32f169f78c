"""Spec of `clamp`."""

from llmc.plugins.graph import Attribute, OpSpec

SPEC = OpSpec(
    name="clamp",
    inputs={"x": ("T", "columns")},
    outputs={"y": ("T", "columns")},
    attributes={
        "columns": Attribute(types=(int,), meaning="columns of x"),
        "limit": Attribute(types=(float,), meaning="largest magnitude let through"),
    },
)
