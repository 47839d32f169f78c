"""Spec of `position_embedding`: hidden + table[batch.positions]."""

from llmc.plugins.graph import Attribute, OpSpec, WeightRole

SPEC = OpSpec(
    name="position_embedding",
    inputs={"hidden": ("T", "hidden_size")},
    outputs={"out": ("T", "hidden_size")},
    attributes={
        "hidden_size": Attribute(types=(int,), meaning="columns"),
        "num_positions": Attribute(types=(int,), meaning="rows of the table"),
    },
    weights={"weight": WeightRole(shape=("num_positions", "hidden_size"))},
    reads_batch=("positions",),
)
