"""Weights of an engine whose plans were built without: refitted, or bound as inputs."""

from pathlib import Path
from typing import Any

import numpy as np

from llmc.errors import CheckpointError
from llmc.runtime.engines.tensorrt_device import Device
from llmc.weights import SafetensorsFile

DATA_TYPES: dict[str, str] = {
    "float32": "FLOAT",
    "float16": "HALF",
    "bfloat16": "BF16",
    "float8_e4m3fn": "FP8",
    "float4_e2m1": "FP4",
    "int8": "INT8",
    "int4": "INT4",
}
"""Element type of a weight → trt.DataType."""


def open_weights(engine_dir: Path, rank: int) -> SafetensorsFile:
    """Open what `llmc refit` wrote for a rank. Raises: CheckpointError when it did not."""
    path = engine_dir / f"rank{rank}.weights.safetensors"
    if not path.is_file():
        raise CheckpointError(
            f"{path}: missing; this engine was built without weights",
            hint="llmc refit writes them from the checkpoint",
        )
    return SafetensorsFile.open(path)


def refit(trt: Any, plan: Any, file: SafetensorsFile) -> None:
    """Give a plan (tensorrt_gpu.GpuPlan) the constants it was built without."""
    # Elements smaller than a byte are stored as bytes; the metadata has what they are.
    dtypes = {
        name: getattr(trt.DataType, DATA_TYPES[file.metadata.get(name, info.dtype)])
        for name, info in file.infos.items()
    }
    plan.refit(lambda name: np.asarray(file.read(name)), dtypes)


def upload_inputs(
    bindings: list[dict[str, Any]], file: SafetensorsFile, device: Device
) -> dict[str, int]:
    """Copy the weights that a plan takes as inputs to the device; return their addresses.

    `bindings` are those of the engine's config.json. Raises: CheckpointError when the file lacks
    one, or has it in another form.
    """
    found = {}
    for binding in bindings:
        if not binding.get("is_weight"):
            continue
        name, shape, dtype = binding["name"], tuple(binding["shape"]), binding["dtype"]
        info = file.infos.get(name)
        if info is None or (info.shape, info.dtype) != (shape, dtype):
            have = f"{info.dtype} {info.shape}" if info else "nothing"
            raise CheckpointError(
                f"{file.path}: {name}: {have}, the plan takes {dtype} {shape}",
                hint="llmc refit writes the file anew",
            )
        found[name] = device.allocate(info.num_bytes)
        device.upload(found[name], file.read_rows(name, 0, shape[0]))
    return found
