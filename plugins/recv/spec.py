"""Spec of `recv`."""

from llmc.plugins.graph import Attribute, OpSpec

SPEC = OpSpec(
    name="recv",
    inputs={},
    outputs={"x": ("rows", "num_columns")},
    attributes={
        "rows": Attribute(types=(str,), meaning='"T" or "L": which symbol the rows are'),
        "num_columns": Attribute(types=(int,), meaning="columns of x"),
        "peer": Attribute(types=(int,), meaning="rank that sent"),
    },
    communicates=True,
)
