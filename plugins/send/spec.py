"""Spec of `send`."""

from llmc.plugins.graph import Attribute, OpSpec

SPEC = OpSpec(
    name="send",
    inputs={"x": ("rows", "num_columns")},
    outputs={},
    attributes={
        "rows": Attribute(types=(str,), meaning='"T" or "L": which symbol the rows are'),
        "num_columns": Attribute(types=(int,), meaning="columns of x"),
        "peer": Attribute(types=(int,), meaning="rank that receives"),
    },
    communicates=True,
)
