"""Gather, scatter, slices, the largest k, one-hot: layers that pick elements by their place."""

import torch

from llmc.builders.targets.tensorrt_interpreter.graph import HELD, Layer
from llmc.builders.targets.tensorrt_interpreter.inputs import (
    Inputs,
    Mode,
    axes_of_mask,
    choose,
    integers,
    optional,
    tensor,
)
from llmc.errors import BuildError, UnsupportedError


def gather(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    x, indices = tensor(layer, inputs, 0), tensor(layer, inputs, 1).to(torch.int64)
    axis, batched = layer.attrs["axis"], layer.attrs["num_elementwise_dims"]
    kind = choose(layer, "mode", {"DEFAULT": "default", "ELEMENT": "element"})
    axis %= x.dim()
    _check_range(layer, indices, x.shape[axis])
    if kind == "element":
        return x.gather(axis, indices)
    if batched == 0:
        return _take(x, indices, axis)
    if batched != 1:
        raise UnsupportedError(f"{layer.name}: GATHER with {batched} elementwise axes, at most 1")
    rows = zip(x, indices, strict=True)
    return torch.stack([_take(row, places, axis - 1) for row, places in rows])


def _take(x: torch.Tensor, indices: torch.Tensor, axis: int) -> torch.Tensor:
    taken = x.index_select(axis, indices.reshape(-1))
    return taken.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _check_range(layer: Layer, indices: torch.Tensor, length: int) -> None:
    """What TensorRT reads out of range is unspecified: an error here."""
    if indices.numel() and not (0 <= int(indices.min()) and int(indices.max()) < length):
        raise BuildError(
            f"{layer.name}: {layer.kind} at {int(indices.min())} to {int(indices.max())} "
            f"of an axis of {length}"
        )


def scatter(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    """ELEMENT: write input 2 at the places input 1 gives along one axis; ND: whole rows."""
    x, indices, updates = (tensor(layer, inputs, index) for index in range(3))
    indices = indices.to(torch.int64)
    if choose(layer, "mode", {"ELEMENT": True, "ND": False}):
        axis = layer.attrs["axis"] % x.dim()
        _check_range(layer, indices, x.shape[axis])
        return x.scatter(axis, indices, updates)
    return x.index_put(tuple(indices.unbind(-1)), updates)


def slice(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:  # noqa: A001 - TensorRT's name
    x = tensor(layer, inputs, 0)
    fills = choose(layer, "mode", {"STRICT_BOUNDS": False, "FILL": True})
    starts = integers(layer, inputs, 1, "start")
    lengths = integers(layer, inputs, 2, "shape")
    strides = integers(layer, inputs, 3, "stride")
    axes = tuple(range(x.dim()))
    if layer.attrs["axes"] is not None or optional(inputs, 5) is not None:
        axes = integers(layer, inputs, 5, "axes")
    for axis, start, length, stride in zip(axes, starts, lengths, strides, strict=True):
        places = start + stride * torch.arange(length)
        if fills:
            x = _fill(layer, inputs, x, axis, places)
            continue
        _check_range(layer, places, x.shape[axis])
        x = x.narrow(axis, start, length) if stride == 1 else x.index_select(axis, places)
    return x


def _fill(
    layer: Layer, inputs: Inputs, x: torch.Tensor, axis: int, places: torch.Tensor
) -> torch.Tensor:
    """Take `places` of an axis; where there is none is the value of input 4, 0 without one."""
    value = optional(inputs, 4)
    inside = (places >= 0) & (places < x.shape[axis])
    taken = x.index_select(axis, places.where(inside, torch.zeros_like(places)))
    there = inside.reshape([-1 if place == axis else 1 for place in range(x.dim())])
    missing = torch.zeros((), dtype=x.dtype) if value is None else value.reshape(())
    return torch.where(there, taken, missing.to(x.dtype))


def topk(layer: Layer, inputs: Inputs, mode: Mode) -> tuple[torch.Tensor, torch.Tensor]:
    x, k = tensor(layer, inputs, 0), optional(inputs, 1)
    largest = choose(layer, "op", {"MAX": True, "MIN": False})
    (axis,) = axes_of_mask(layer.attrs["axes"], x.dim())
    count = layer.attrs["k"] if k is None else int(k)
    # A stable sort: of equal values TensorRT takes the first. Its documents leave that open; the
    # source from which TensorRT for RTX 1.7.1 compiles its kernels (MaxIndexOp) compares the places
    # of equal values.
    order = x.argsort(dim=axis, descending=largest, stable=True).narrow(axis, 0, count)
    return x.gather(axis, order), order.to(HELD[layer.attrs["indices_type"]])


def one_hot(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    """Input 1 is (off, on), input 2 the length of the new axis."""
    indices, values, depth = (tensor(layer, inputs, index) for index in range(3))
    axis = layer.attrs["axis"] % (indices.dim() + 1)
    places = torch.arange(int(depth)).reshape(
        [-1 if a == axis else 1 for a in range(indices.dim() + 1)]
    )
    return torch.where(indices.unsqueeze(axis) == places, values[1], values[0])
