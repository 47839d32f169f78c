"""Activation functions in TensorRT's layers, by the names the ops have for them."""

from collections.abc import Callable

from llmc.plugins.tensorrt_layers import Layers
from llmc.plugins.tensorrt_lowering import Lowering, Tensor


def activate(lowering: Lowering, name: str, x: Tensor) -> Tensor:
    """Return the activation of x; `name` is one of ACTIVATIONS."""
    return ACTIVATIONS[name](lowering.layers, x)


def _silu(layers: Layers, x: Tensor) -> Tensor:
    return layers.binary("PROD", x, layers.activation("SIGMOID", x))


def _squared_relu(layers: Layers, x: Tensor) -> Tensor:
    positive = layers.activation("RELU", x)
    return layers.binary("PROD", positive, positive)


ACTIVATIONS: dict[str, Callable[[Layers, Tensor], Tensor]] = {
    "silu": _silu,
    "gelu": lambda layers, x: layers.activation("GELU_ERF", x),
    "gelu_tanh": lambda layers, x: layers.activation("GELU_TANH", x),
    "relu": lambda layers, x: layers.activation("RELU", x),
    "relu2": _squared_relu,
}
