"""A network as plain data: layers in an order they can be evaluated in, and constants.

Owns the types of elements too: what a value of each is held as. Floating types, the small ones of
quantization included, are held as float32, which has all their values exactly.
"""

from dataclasses import dataclass
from typing import Any

import torch

HELD: dict[str, torch.dtype] = {
    "FLOAT": torch.float32,
    "HALF": torch.float32,
    "BF16": torch.float32,
    "FP8": torch.float32,
    "FP4": torch.float32,
    "E8M0": torch.float32,
    "INT4": torch.float32,
    "INT8": torch.float32,
    "UINT8": torch.uint8,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "BOOL": torch.bool,
}
"""trt.DataType → element type a value is held as."""

ROUNDED: dict[str, torch.dtype] = {"HALF": torch.float16, "BF16": torch.bfloat16}
"""Types that "typed" evaluation rounds each value of to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """`dtype` is a trt.DataType by name; a length known only at run time is -1."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer: `kind` is a trt.LayerType by name, enums in `attrs` are names, dims tuples.

    `inputs` and `outputs` name tensors; an optional input that is not set is None.
    """

    kind: str
    name: str
    inputs: tuple[str | None, ...]
    outputs: tuple[TensorInfo, ...]
    attrs: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A network: every layer stands after those it reads."""

    layers: tuple[Layer, ...]
    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]
    constants: dict[str, torch.Tensor]

    @property
    def cache_outputs(self) -> dict[str, str]:
        """Output of each KV cache update that is the network's → the input whose memory it has."""
        return {
            layer.outputs[0].name: str(layer.inputs[0])
            for layer in self.layers
            if layer.kind == "KV_CACHE_UPDATE" and layer.outputs[0].name in self.outputs
        }
