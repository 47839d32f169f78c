"""Spec of `gated_activation`: act(x[:, :I]) * x[:, I:]."""

from llmc.plugins.graph import Attribute, OpSpec

SPEC = OpSpec(
    name="gated_activation",
    inputs={"x": ("T", "2 * intermediate_size")},
    outputs={"y": ("T", "intermediate_size")},
    attributes={
        "intermediate_size": Attribute(types=(int,), meaning="columns of y on this rank"),
        "activation": Attribute(types=(str,), meaning='"silu"'),
    },
)
