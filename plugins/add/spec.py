"""Spec of `add`."""

from llmc.plugins.graph import Attribute, OpSpec

SPEC = OpSpec(
    name="add",
    inputs={"a": ("T", "hidden_size"), "b": ("T", "hidden_size")},
    outputs={"out": ("T", "hidden_size")},
    attributes={"hidden_size": Attribute(types=(int,), meaning="columns")},
)
