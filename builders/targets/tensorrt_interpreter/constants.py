"""The values of a constant layer, whatever their type.

TensorRT's Python gives NumPy arrays of the types NumPy has, and for the others an object without
access to its values. So the record behind both is read: nvinfer1::Weights {int32 type; const void*
values; int64 count}, which pybind11 keeps a pointer to right after the object's header.

Constants without values, placeholders for a refit, are not told apart by TensorRT: each gets an
address of its own, one byte after the last one's. So constants that overlap are such.
"""

import ctypes
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llmc.builders.targets.tensorrt_interpreter.graph import HELD
from llmc.builders.targets.tensorrt_interpreter.numbers import FP4_VALUES
from llmc.errors import BuildError

_HEADER_BYTES = object.__basicsize__

Bytes = npt.NDArray[np.uint8]


def read_constants(layers: list[Any]) -> dict[str, torch.Tensor]:
    """Return the values of IConstantLayers by their tensor, held as the tensor's type is.

    Raises: BuildError for placeholders without values, or a record that is not understood.
    """
    memory = [_memory(layer) for layer in layers]
    _check_apart(memory, layers)
    found = {}
    for layer, (address, num_bytes) in zip(layers, memory, strict=True):
        raw = np.ctypeslib.as_array(
            ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)), (num_bytes,)
        )
        output, shape = layer.get_output(0), tuple(layer.shape)
        values = _DECODERS[output.dtype.name](raw)[: math.prod(shape)]
        found[output.name] = values.reshape(shape).to(HELD[output.dtype.name])
    return found


def _check_apart(memory: list[tuple[int, int]], layers: list[Any]) -> None:
    """Constants may share their memory whole, but not in part."""
    ordered = sorted(zip(memory, (layer.name for layer in layers), strict=True))
    for ((address, num_bytes), name), ((following, _), _) in pairwise(ordered):
        if address < following < address + num_bytes:
            raise BuildError(
                f"{name}: a placeholder without values, nothing can be evaluated",
                hint="lower the network with its weights",
            )


def _memory(layer: Any) -> tuple[int, int]:
    """Return the address and the number of bytes of a constant's values."""
    weights = layer.weights
    if isinstance(weights, np.ndarray):
        weights = weights.base
    dtype = layer.get_output(0).dtype
    address, count = _record(weights, int(dtype), layer.name)
    return address, -(-count * _BITS[dtype.name] // 8)


def _record(weights: Any, dtype: int, name: str) -> tuple[int, int]:
    """Return the address and the number of the values."""
    place = ctypes.c_void_p.from_address(id(weights) + _HEADER_BYTES).value
    if place is None or int(weights.dtype) != dtype:
        raise BuildError(f"{name}: the weights of this constant cannot be read")
    stored, count = ctypes.c_int32.from_address(place), ctypes.c_int64.from_address(place + 16)
    # Were the record laid out otherwise, type and count would not be the ones TensorRT tells.
    if (stored.value, count.value) != (dtype, weights.size):
        raise BuildError(f"{name}: this TensorRT keeps weights in another form than was expected")
    address = ctypes.c_void_p.from_address(place + 8).value
    if address is None:
        raise BuildError(f"{name}: a constant without values")
    return address, count.value


def _numbers(dtype: torch.dtype) -> Callable[[Bytes], torch.Tensor]:
    return lambda raw: torch.from_numpy(raw).view(dtype).clone()


def _nibbles(raw: Bytes) -> torch.Tensor:
    """Two numbers to a byte, the low half first."""
    return torch.from_numpy(np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)).to(torch.int64)


def _int4(raw: Bytes) -> torch.Tensor:
    values = _nibbles(raw)
    return torch.where(values < 8, values, values - 16)


_DECODERS: dict[str, Callable[[Bytes], torch.Tensor]] = {
    "FLOAT": _numbers(torch.float32),
    "HALF": _numbers(torch.float16),
    "BF16": _numbers(torch.bfloat16),
    "FP8": _numbers(torch.float8_e4m3fn),
    "E8M0": _numbers(torch.float8_e8m0fnu),
    "INT8": _numbers(torch.int8),
    "UINT8": _numbers(torch.uint8),
    "INT32": _numbers(torch.int32),
    "INT64": _numbers(torch.int64),
    "BOOL": _numbers(torch.bool),
    "INT4": _int4,
    "FP4": lambda raw: torch.tensor(FP4_VALUES)[_nibbles(raw)],
}

_BITS: dict[str, int] = {
    **{name: 8 for name in ("FP8", "E8M0", "INT8", "UINT8", "BOOL")},
    **{name: 16 for name in ("HALF", "BF16")},
    **{name: 32 for name in ("FLOAT", "INT32")},
    **{name: 4 for name in ("INT4", "FP4")},
    "INT64": 64,
}
