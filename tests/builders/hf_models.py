"""Tiny Hugging Face directories, whole or damaged on purpose."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.builders.families.family import load_family
from llmc.builders.families.rules import Rows
from llmc.builders.hf.config import HfConfig
from llmc.checkpoint import CheckpointConfig, tensor_specs
from tests.goldens import golden

Tensors = dict[str, npt.NDArray[Any]]

TINY: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "MistralForCausalLM": {"model_type": "mistral", "sliding_window": None},
}
"""What a family's configs have beyond `tiny_config`'s sizes."""


def tiny_config(architecture: str = "LlamaForCausalLM", **changes: Any) -> dict[str, Any]:
    """Return config.json of a two-layer model; a change to None removes the key."""
    config = {
        "architectures": [architecture],
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 64,
        "vocab_size": 101,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
        **TINY[architecture],
        **changes,
    }
    return {key: value for key, value in config.items() if value is not None}


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor the family of `config` reads."""
    family = load_family(config["architectures"][0])
    arch = family.arch(HfConfig(Path("config.json"), config))
    shapes = {
        rows.source: rows.shape
        for spec in tensor_specs(CheckpointConfig(arch=arch, dtype="float32"), 0)
        for rows in family.sources(spec, arch)
    }
    if arch.tie_word_embeddings:
        del shapes["lm_head.weight"]
    return shapes


def assemble(sources: Sequence[Rows], tensors: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the rows of `sources`, one after another, the slow way: row by row."""
    rows = []
    for source in sources:
        whole = tensors[source.source]
        whole = np.swapaxes(whole, -1, -2) if source.transposed else whole
        whole = whole.reshape(-1) if source.vector else whole.reshape(-1, whole.shape[-1])
        for index in range(source.start, source.stop, source.step):
            row = (
                whole[index].astype(np.float32) + np.float32(1) if source.plus_one else whole[index]
            )
            rows.append(row)
    stacked: npt.NDArray[Any] = np.stack(rows)
    return stacked


def tiny_tensors(config: dict[str, Any], dtype: str = "float32") -> Tensors:
    """Return a weight for every tensor the family of `config` reads, by the golden formula."""
    shapes = tensor_shapes(config)
    return {name: golden.values(name, shape, dtype) for name, shape in shapes.items()}


def write_tiny(
    directory: Path, config: dict[str, Any], tensors: Tensors | None = None, *, num_shards: int = 1
) -> Path:
    """Write a model to `directory`, in one file or in indexed shards; return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = tiny_tensors(config) if tensors is None else tensors
    if num_shards == 1:
        golden.write_safetensors(directory / "model.safetensors", tensors)
        return directory
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file = shard_name(shard, num_shards)
        part = dict(list(tensors.items())[shard::num_shards])
        golden.write_safetensors(directory / file, part)
        weight_map |= dict.fromkeys(part, file)
    write_index(directory, weight_map)
    return directory


def shard_name(shard: int, num_shards: int) -> str:
    """Return the file name transformers gives to a shard, counted from 0 here."""
    return f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"


def write_index(directory: Path, weight_map: dict[str, str]) -> None:
    """Write the index of a sharded model."""
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
