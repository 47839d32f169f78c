"""Spec of `sigmoid_gate`: x * sigmoid(gate); a shared expert's output and its gate."""

from llmc.plugins.graph import Attribute, OpSpec

SPEC = OpSpec(
    name="sigmoid_gate",
    inputs={"x": ("T", "hidden_size"), "gate": ("T", "1")},
    outputs={"y": ("T", "hidden_size")},
    attributes={"hidden_size": Attribute(types=(int,), meaning="columns of x")},
)
