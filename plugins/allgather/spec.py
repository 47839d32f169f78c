"""Spec of `allgather`: columns of every rank side by side in group order, cut to `num_columns`.

The cut drops the columns that padded a vocabulary to a multiple of the group's size.
"""

from llmc.plugins.graph import Attribute, OpSpec

SPEC = OpSpec(
    name="allgather",
    inputs={"x": ("rows", "local_columns")},
    outputs={"y": ("rows", "num_columns")},
    attributes={
        "rows": Attribute(types=(str,), meaning='"T" or "L": which symbol the rows are'),
        "local_columns": Attribute(types=(int,), meaning="columns of x, equal on every rank"),
        "num_columns": Attribute(types=(int,), meaning="columns of y that are kept"),
        "group": Attribute(
            types=(tuple,), meaning="ranks that gather, ascending, this one among them"
        ),
    },
    communicates=True,
)
