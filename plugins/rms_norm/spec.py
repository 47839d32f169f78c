"""Spec of `rms_norm`."""

from llmc.plugins.graph import Attribute, OpSpec, WeightRole

SPEC = OpSpec(
    name="rms_norm",
    inputs={"x": ("T", "hidden_size")},
    outputs={"y": ("T", "hidden_size")},
    attributes={
        "hidden_size": Attribute(types=(int,), meaning="columns, over which the mean is taken"),
        "epsilon": Attribute(types=(float,), meaning="added to the mean square"),
    },
    weights={"weight": WeightRole(shape=("hidden_size",))},
)
