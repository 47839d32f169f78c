"""Layers that work on each element, or reduce an axis."""

from collections.abc import Callable

import torch

from llmc.builders.targets.tensorrt_interpreter.graph import HELD, Layer
from llmc.builders.targets.tensorrt_interpreter.inputs import (
    Inputs,
    Mode,
    axes_of_mask,
    choose,
    tensor,
)

_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "PROD": torch.mul,
    "MAX": torch.maximum,
    "MIN": torch.minimum,
    "SUB": torch.sub,
    "POW": torch.pow,
    "FLOOR_DIV": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "AND": torch.logical_and,
    "OR": torch.logical_or,
    "XOR": torch.logical_xor,
    "EQUAL": torch.eq,
    "GREATER": torch.gt,
    "LESS": torch.lt,
    # Of integers it truncates, as C does.
    "DIV": lambda a, b: (
        torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")
    ),
}

_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "EXP": torch.exp,
    "LOG": torch.log,
    "SQRT": torch.sqrt,
    "RECIP": torch.reciprocal,
    "ABS": torch.abs,
    "NEG": torch.neg,
    "SIN": torch.sin,
    "COS": torch.cos,
    "TAN": torch.tan,
    "CEIL": torch.ceil,
    "FLOOR": torch.floor,
    "ERF": torch.erf,
    "NOT": torch.logical_not,
    "SIGN": torch.sign,
    "ROUND": torch.round,
    "ISINF": torch.isinf,
    "ISNAN": torch.isnan,
}

_ACTIVATIONS: dict[str, Callable[[torch.Tensor, float, float], torch.Tensor]] = {
    "RELU": lambda x, alpha, beta: torch.relu(x),
    "SIGMOID": lambda x, alpha, beta: torch.sigmoid(x),
    "TANH": lambda x, alpha, beta: torch.tanh(x),
    "CLIP": lambda x, alpha, beta: x.clamp(alpha, beta),
    "GELU_ERF": lambda x, alpha, beta: torch.nn.functional.gelu(x),
    "GELU_TANH": lambda x, alpha, beta: torch.nn.functional.gelu(x, approximate="tanh"),
    "LEAKY_RELU": lambda x, alpha, beta: torch.where(x >= 0, x, alpha * x),
    "SCALED_TANH": lambda x, alpha, beta: alpha * torch.tanh(beta * x),
    "SOFTPLUS": lambda x, alpha, beta: alpha * torch.log1p(torch.exp(beta * x)),
}
"""trt.ActivationType → formula with the layer's alpha and beta. Source: NvInfer.h."""

_REDUCTIONS: dict[str, Callable[[torch.Tensor, tuple[int, ...], bool], torch.Tensor]] = {
    "SUM": lambda x, axes, keep: x.sum(axes, keepdim=keep, dtype=x.dtype),
    "AVG": lambda x, axes, keep: x.mean(axes, keepdim=keep),
    "MAX": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "MIN": lambda x, axes, keep: x.amin(axes, keepdim=keep),
}


def elementwise(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    a, b = tensor(layer, inputs, 0), tensor(layer, inputs, 1)
    return choose(layer, "op", _BINARY)(a, b)


def unary(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    return choose(layer, "op", _UNARY)(tensor(layer, inputs, 0))


def activation(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    formula = choose(layer, "type", _ACTIVATIONS)
    return formula(tensor(layer, inputs, 0), layer.attrs["alpha"], layer.attrs["beta"])


def reduce(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    x = tensor(layer, inputs, 0)
    axes = axes_of_mask(layer.attrs["axes"], x.dim())
    return choose(layer, "op", _REDUCTIONS)(x, axes, layer.attrs["keep_dims"])


def cumulative(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    """Running sum along the axis that input 1 names."""
    choose(layer, "op", {"SUM": None})
    x, axis = tensor(layer, inputs, 0), int(tensor(layer, inputs, 1))
    if layer.attrs["reverse"]:
        x = x.flip(axis)
    total = x.cumsum(axis, dtype=x.dtype)
    if layer.attrs["exclusive"]:
        total = total - x
    return total.flip(axis) if layer.attrs["reverse"] else total


def select(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    condition = tensor(layer, inputs, 0)
    return torch.where(condition, tensor(layer, inputs, 1), tensor(layer, inputs, 2))


def cast(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    """Rounding to a smaller floating type is the mode's business; to integers it truncates."""
    choose(layer, "to_type", dict.fromkeys(("FLOAT", "HALF", "BF16", "INT32", "INT64", "BOOL")))
    return tensor(layer, inputs, 0).to(HELD[layer.attrs["to_type"]])


def identity(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    return tensor(layer, inputs, 0)
