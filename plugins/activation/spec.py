"""Spec of `activation`, and the names of activations wherever an op takes one."""

from llmc.plugins.graph import Attribute, OpSpec

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu")
"""silu: x * sigmoid(x). gelu: x * Phi(x), by the error function. gelu_tanh: its approximation by
tanh (Hugging Face's gelu_new, gelu_fast, gelu_pytorch_tanh). relu2: relu squared. quick_gelu:
x * sigmoid(1.702 x)."""

SPEC = OpSpec(
    name="activation",
    inputs={"x": ("T", "columns")},
    outputs={"y": ("T", "columns")},
    attributes={
        "columns": Attribute(types=(int,), meaning="columns on this rank"),
        "activation": Attribute(types=(str,), meaning=f"one of {', '.join(ACTIVATIONS)}"),
    },
)
