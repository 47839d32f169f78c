"""The normalization layer: mean and variance over axes, then scale and bias."""

import torch

from llmc.builders.targets.tensorrt_interpreter.graph import Layer
from llmc.builders.targets.tensorrt_interpreter.inputs import Inputs, Mode, axes_of_mask, tensor
from llmc.errors import UnsupportedError


def normalization(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias. It is LayerNorm, never RMSNorm."""
    x, scale, bias = (tensor(layer, inputs, index) for index in range(3))
    if layer.attrs["num_groups"] != 1:
        raise UnsupportedError(f"{layer.name}: NORMALIZATION of {layer.attrs['num_groups']} groups")
    axes = axes_of_mask(layer.attrs["axes"], x.dim())
    centred = x - x.mean(axes, keepdim=True)
    variance = centred.square().mean(axes, keepdim=True)
    return centred * torch.rsqrt(variance + layer.attrs["epsilon"]) * scale + bias
