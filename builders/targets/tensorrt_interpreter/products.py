"""Matrix products and softmax."""

import torch

from llmc.builders.targets.tensorrt_interpreter.graph import Layer
from llmc.builders.targets.tensorrt_interpreter.inputs import (
    Inputs,
    Mode,
    axes_of_mask,
    choose,
    tensor,
)


def matrix_multiply(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    a, b = tensor(layer, inputs, 0), tensor(layer, inputs, 1)
    if choose(layer, "op0", {"NONE": False, "TRANSPOSE": True}):
        a = a.transpose(-1, -2)
    if choose(layer, "op1", {"NONE": False, "TRANSPOSE": True}):
        b = b.transpose(-1, -2)
    if b.dim() > 2 and set(b.shape[:-2]) == {1} and b.dim() <= a.dim():
        # One matrix for all: a product of one large matrix is much faster than one of a batch.
        b = b.reshape(b.shape[-2:])
    return a @ b


def softmax(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    x = tensor(layer, inputs, 0)
    (axis,) = axes_of_mask(layer.attrs["axes"], x.dim())
    return x.softmax(axis)
