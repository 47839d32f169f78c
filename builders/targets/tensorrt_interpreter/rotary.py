"""The rotary embedding layer."""

import torch

from llmc.builders.targets.tensorrt_interpreter.graph import Layer
from llmc.builders.targets.tensorrt_interpreter.inputs import Inputs, Mode, optional, tensor
from llmc.errors import BuildError


def rotary_embedding(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    """Rotate pairs of x [B, N, S, H]; elements past `rotary_embedding_dim` stay.

    Tables are [positions, half] looked up by input 3, positions [B, S], or [B, S, half] without
    it. A pair is (i, i + half), or (2 i, 2 i + 1) when interleaved.
    """
    x, cos, sin = (tensor(layer, inputs, index) for index in range(3))
    positions = optional(inputs, 3)
    # 0 stands for the whole head.
    rotary = layer.attrs["rotary_embedding_dim"] or x.shape[-1]
    half = rotary // 2
    if cos.shape[-1] != half or sin.shape != cos.shape:
        raise BuildError(f"{layer.name}: tables of {tuple(cos.shape)}, expected {half} columns")
    if positions is not None:
        if int(positions.min()) < 0 or int(positions.max()) >= cos.shape[0]:
            raise BuildError(f"{layer.name}: a position outside the table of {cos.shape[0]}")
        cos, sin = cos[positions.to(torch.int64)], sin[positions.to(torch.int64)]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned, rest = x[..., :rotary], x[..., rotary:]
    if layer.attrs["interleaved"]:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return torch.cat((turned, rest), dim=-1)
