"""Imports TensorRT itself, from the one place that may, and knows which versions have what.

The bindings of 10.15.1, 10.16.1, 11.0.0 and 11.4.0 were asked; TensorRT for RTX 1.7 has the layers
of 11.4.
"""

import ctypes
from collections.abc import Iterator
from typing import Any

from llmc.builders.network import build_network
from llmc.checkpoint import CheckpointConfig
from llmc.errors import ToolchainError, UnsupportedError

NEEDED: dict[str, tuple[str, str]] = {
    "INetworkDefinition.add_attention_v2": ("11.0", "attention"),
    "IAttention.key_value_lengths": ("11.0", "attention over slots of unequal lengths"),
    "INetworkDefinition.add_kv_cache_update": ("10.15", "KV caches"),
    "INetworkDefinition.add_rotary_embedding": ("10.15", "rotary embeddings"),
    "INetworkDefinition.add_dist_collective": ("10.16", "what ranks exchange"),
    "INetworkDefinition.add_dynamic_quantize": ("10.8", "NVFP4"),
}
"""Class and attribute → the first version that has it, and what a network needs it for."""

_HOST = (
    "on a host with an NVIDIA GPU: pip install tensorrt (11.0 or later); anywhere else, --target"
    " tensorrt-rtx builds for compute capabilities 75 to 121 without a GPU"
)
_MAJOR, _MINOR = 75, 76
"""Source: CUdevice_attribute in cuda.h, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""


def import_tensorrt() -> Any:
    """Return TensorRT's module. Raises: ToolchainError when it is not installed."""
    try:
        import tensorrt
    except ImportError as error:
        raise ToolchainError(f"TensorRT cannot be imported: {error}", hint=_HOST) from error
    return tensorrt


def gpu_capability() -> int:
    """Return the first GPU's compute capability, 90 for 9.0. Raises: ToolchainError without one."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ToolchainError(f"no CUDA driver: {error}", hint=_HOST) from error
    device, numbers = ctypes.c_int(), [ctypes.c_int(), ctypes.c_int()]
    status = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
    for number, attribute in zip(numbers, (_MAJOR, _MINOR), strict=True):
        status = status or cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    if status:
        raise ToolchainError(f"no GPU: CUDA error {status}", hint=_HOST)
    return numbers[0].value * 10 + numbers[1].value


def missing(trt: Any, config: CheckpointConfig) -> Iterator[str]:
    """Yield what the networks of a checkpoint need and this TensorRT does not have, by name.

    Of a checkpoint that no network can be written for there is nothing to say.
    """
    try:
        needless = set(_needless(config))
    except UnsupportedError:
        return
    for name, (version, purpose) in NEEDED.items():
        owner, attribute = name.split(".")
        if name not in needless and not hasattr(getattr(trt, owner, None), attribute):
            yield (
                f"TensorRT {trt.__version__} has no {name}, needed for {purpose}; {version} is the"
                " first that has"
            )


def _needless(config: CheckpointConfig) -> Iterator[str]:
    calls = build_network(config, 0).ops
    if config.mapping.tp_size == 1:
        yield "INetworkDefinition.add_dist_collective"
    if all(call.attrs.get("quant") != "NVFP4" for call in calls):
        yield "INetworkDefinition.add_dynamic_quantize"
    if all(call.attrs.get("rope_style", "none") == "none" for call in calls):
        yield "INetworkDefinition.add_rotary_embedding"
