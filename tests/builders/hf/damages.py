"""What can be done to a model directory before it is looked at; each change is one function."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from llmc.weights import SafetensorsFile
from tests.builders.hf_models import shard_name, write_index
from tests.goldens import golden

NUM_SHARDS = 3
UP = "model.layers.1.mlp.up_proj.weight"
OUTPUT, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
INDEX = "model.safetensors.index.json"

Damage = Callable[[Path], None]


def tensors_changed(change: Callable[[dict[str, Any]], None]) -> Damage:
    """Read the one weight file, let `change` at its tensors, write it again."""

    def damage(directory: Path) -> None:
        path = directory / "model.safetensors"
        file = SafetensorsFile.open(path)
        tensors = {name: file.read(name).copy() for name in file.infos}
        file.close()
        change(tensors)
        path.unlink()
        golden.write_safetensors(path, tensors)

    return damage


def without(*names: str) -> Damage:
    def change(tensors: dict[str, Any]) -> None:
        for name in names:
            del tensors[name]

    return tensors_changed(change)


def with_zeros(name: str, *shape: int, dtype: Any = np.float32) -> Damage:
    return tensors_changed(lambda tensors: tensors.update({name: np.zeros(shape, dtype)}))


def as_dtype(pattern: str, dtype: Any) -> Damage:
    """Store every tensor with `pattern` in its name as `dtype`."""
    return tensors_changed(
        lambda tensors: tensors.update(
            {name: array.astype(dtype) for name, array in tensors.items() if pattern in name}
        )
    )


def with_value(name: str, value: float) -> Damage:
    return tensors_changed(lambda tensors: tensors[name].__setitem__((5, 7), value))


def with_output(*, equal: bool) -> Damage:
    """Add an output tensor that is the embedding, or nearly."""

    def change(tensors: dict[str, Any]) -> None:
        tensors[OUTPUT] = tensors[EMBEDDING].copy()
        tensors[OUTPUT][5, 7] += 0 if equal else 1

    return tensors_changed(change)


def unknown_dtype(directory: Path) -> None:
    """Rename the type of one tensor in the header, as a newer writer would have spelled it."""
    path = directory / "model.safetensors"
    data = path.read_bytes()
    at = data.index(UP.encode())
    path.write_bytes(data[:at] + data[at:].replace(b'"F32"', b'"F99"', 1))


def written(name: str, content: str | bytes | dict[str, Any] | list[Any]) -> Damage:
    """Write a file."""

    def damage(directory: Path) -> None:
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        data = text if isinstance(text, bytes) else text.encode()
        (directory / name).write_bytes(data)

    return damage


def removed(name: str) -> Damage:
    return lambda directory: (directory / name).unlink()


def truncated(name: str) -> Damage:
    def damage(directory: Path) -> None:
        path = directory / name
        path.write_bytes(path.read_bytes()[:-7])

    return damage


def indexed(shard: str, *names: str) -> Damage:
    """Let the index say that `names` are in `shard`."""

    def damage(directory: Path) -> None:
        weight_map = json.loads((directory / INDEX).read_text())["weight_map"]
        write_index(directory, weight_map | dict.fromkeys(names, shard))

    return damage


def twice(directory: Path) -> None:
    """Leave a tensor in a shard the index does not name for it, as a careless merge does."""
    golden.write_safetensors(directory / "extra.safetensors", {UP: np.zeros(3, np.float32)})
    indexed("extra.safetensors", "x")(directory)


def stale_shard(directory: Path) -> None:
    """Leave a shard of an earlier save, which the index knows nothing of."""
    path = directory / shard_name(7, 8)
    golden.write_safetensors(path, {UP: np.full((64, 48), np.nan, np.float32)})


def stale_shards(directory: Path) -> None:
    """Leave index and shards of an earlier save beside the one file."""
    golden.write_safetensors(directory / "a.safetensors", {UP: np.zeros(3, np.float32)})
    write_index(directory, {UP: "a.safetensors"})
