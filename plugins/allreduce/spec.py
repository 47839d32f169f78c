"""Spec of `allreduce`."""

from llmc.plugins.graph import Attribute, OpSpec

SPEC = OpSpec(
    name="allreduce",
    inputs={"x": ("T", "num_columns")},
    outputs={"y": ("T", "num_columns")},
    attributes={
        "num_columns": Attribute(types=(int,), meaning="columns of x"),
        "group": Attribute(
            types=(tuple,), meaning="ranks that sum, ascending, this one among them"
        ),
    },
    communicates=True,
)
