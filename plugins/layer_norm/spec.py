"""Spec of `layer_norm`."""

from llmc.plugins.graph import Attribute, OpSpec, WeightRole

SPEC = OpSpec(
    name="layer_norm",
    inputs={"x": ("T", "hidden_size")},
    outputs={"y": ("T", "hidden_size")},
    attributes={
        "hidden_size": Attribute(types=(int,), meaning="columns, over which is normalized"),
        "epsilon": Attribute(types=(float,), meaning="added to the variance"),
    },
    weights={
        "weight": WeightRole(shape=("hidden_size",)),
        "bias": WeightRole(shape=("hidden_size",), optional=True),
    },
)
