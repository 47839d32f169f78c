"""The stored descriptions of NVIDIA's checkpoints, and the models they were made from."""

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.dtypes import dtype_name, numpy_dtype
from llmc.tensors import TensorInfo
from llmc.weights import SafetensorsWriter

DIRECTORY = Path(__file__).parent
CHECKPOINTS = sorted(path.stem for path in (DIRECTORY / "checkpoints").glob("*.json"))
LEFT_OUT = ("embed_positions", "embed_positions_for_gpt_attention", "rotary_inv_freq")


def load_checkpoint(name: str) -> dict[str, Any]:
    """Return {model, args, config, ranks: {file: {tensor: {dtype, shape, sha256}}}}."""
    data: dict[str, Any] = json.loads((DIRECTORY / "checkpoints" / f"{name}.json").read_text())
    for tensors in data["ranks"].values():
        for left_out in LEFT_OUT:
            tensors.pop(left_out, None)
    return data


def load_model(name: str) -> dict[str, Any]:
    """Return {config, tensors: {name: {dtype, shape, sha256}}}."""
    data: dict[str, Any] = json.loads((DIRECTORY / "models" / f"{name}.json").read_text())
    return data


def values(name: str, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """Return the weight the formula gives to a name: near 1 for norms, near 0 otherwise."""
    generator = np.random.RandomState(zlib.crc32(name.encode()))
    noise: npt.NDArray[np.float32] = generator.standard_normal(shape).astype(np.float32)
    is_norm = len(shape) == 1 and name.endswith("weight") and ("norm" in name or "ln_" in name)
    scaled = np.float32(1) + np.float32(0.1) * noise if is_norm else np.float32(0.02) * noise
    return scaled.astype(numpy_dtype(dtype))


def sha256(array: npt.NDArray[Any]) -> str:
    """Return the digest of the array's bytes in row-major order."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def model_tensors(name: str) -> dict[str, npt.NDArray[Any]]:
    """Return the weights of a stored model, checked against its digests."""
    tensors = {}
    for tensor, entry in load_model(name)["tensors"].items():
        tensors[tensor] = values(tensor, tuple(entry["shape"]), entry["dtype"])
        assert sha256(tensors[tensor]) == entry["sha256"], tensor
    return tensors


def write_model(directory: Path, name: str) -> Path:
    """Write the Hugging Face directory of a stored model to `directory`; return it.

    Token ids that the small vocabulary lacks, which NVIDIA's converter overlooks, are left out.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = load_model(name)["config"]
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if (config.get(key) or 0) >= config["vocab_size"]:
            del config[key]
    (directory / "config.json").write_text(json.dumps(config))
    write_safetensors(directory / "model.safetensors", model_tensors(name))
    return directory


def write_safetensors(path: Path, tensors: dict[str, npt.NDArray[Any]]) -> None:
    """Write whole tensors to `path`."""
    infos = [
        TensorInfo(name=name, dtype=dtype_name(array.dtype), shape=array.shape)
        for name, array in tensors.items()
    ]
    with SafetensorsWriter(path, infos) as writer:
        for name, array in tensors.items():
            writer.write(name, array)
