"""Layers that move elements without changing any, and those that make shapes and ranges."""

import torch

from llmc.builders.targets.tensorrt_interpreter.graph import HELD, Layer
from llmc.builders.targets.tensorrt_interpreter.inputs import (
    Inputs,
    Mode,
    choose,
    integers,
    optional,
    tensor,
)
from llmc.errors import UnsupportedError


def shape(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    return torch.tensor(tensor(layer, inputs, 0).shape, dtype=torch.int64)


def shuffle(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    """Permute, reshape, permute."""
    x = tensor(layer, inputs, 0)
    x = x.permute(layer.attrs["first_transpose"][: x.dim()])
    if layer.attrs["reshape_dims"] is not None or optional(inputs, 1) is not None:
        dims = list(integers(layer, inputs, 1, "reshape_dims"))
        if layer.attrs["zero_is_placeholder"]:
            dims = [x.shape[axis] if length == 0 else length for axis, length in enumerate(dims)]
        x = x.reshape(dims)
    return x.permute(layer.attrs["second_transpose"][: x.dim()])


def concatenation(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    parts = [tensor(layer, inputs, index) for index in range(len(inputs))]
    return torch.cat(parts, layer.attrs["axis"])


def squeeze(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    x, axes = tensor(layer, inputs, 0), tensor(layer, inputs, 1).reshape(-1).tolist()
    return x.squeeze(tuple(int(axis) for axis in axes))


def unsqueeze(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    """Put an axis of length 1 at each place given, counted in the result."""
    x = tensor(layer, inputs, 0)
    axes = [int(axis) for axis in tensor(layer, inputs, 1).reshape(-1).tolist()]
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def fill(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    """LINSPACE: start + step * index, along each axis a step of its own."""
    choose(layer, "operation", {"LINSPACE": None})
    dims = integers(layer, inputs, 0, "shape")
    dtype = HELD[layer.attrs["to_type"]]
    start, step = optional(inputs, 1), optional(inputs, 2)
    if start is None:
        start = torch.tensor(layer.attrs["alpha"])
    if step is None:
        step = torch.tensor(layer.attrs["beta"])
    steps = step.reshape(-1).expand(len(dims)) if step.numel() == 1 else step.reshape(-1)
    if len(steps) != len(dims):
        raise UnsupportedError(f"{layer.name}: {len(steps)} steps for {len(dims)} axes")
    result = start.reshape(()).to(dtype).expand(dims).clone()
    for axis, length in enumerate(dims):
        places = torch.arange(length).reshape([-1 if a == axis else 1 for a in range(len(dims))])
        result += (places * steps[axis]).to(dtype)
    return result
