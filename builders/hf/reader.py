"""The weights of a Hugging Face directory: one safetensors file or shards with an index.

Opening checks every file's header and size and compares the index with what the shards hold; no
weight is read. Pickled checkpoints are refused: reading one can run code.
"""

from pathlib import Path
from typing import Any

import numpy.typing as npt

from llmc.builders.hf.config import read_json
from llmc.errors import CheckpointError
from llmc.tensors import TensorInfo
from llmc.weights import SafetensorsFile

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class HfWeights:
    """Every tensor of a model by name, whatever file it is in.

    `reasons` says, one line each, what is wrong with the files; `infos` has what could be opened.
    """

    __slots__ = ("directory", "infos", "reasons", "_files")

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.infos: dict[str, TensorInfo] = {}
        self.reasons: list[str] = []
        self._files: dict[str, SafetensorsFile] = {}

    @classmethod
    def open(cls, directory: Path) -> "HfWeights":
        """Open the weights in `directory`; problems are in `reasons`, not raised."""
        weights = cls(directory)
        # transformers looks in this order too.
        if (directory / _SINGLE).exists():
            weights._add_file(directory / _SINGLE)
        elif (directory / _INDEX).exists():
            weights._add_shards(directory / _INDEX)
        else:
            weights.reasons.append(_no_weights(directory))
        return weights

    def path(self, name: str) -> Path:
        """Return the file that holds tensor `name`."""
        return self._files[name].path

    def read_rows(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows [start, stop) of tensor `name`; threads may call this at the same time."""
        return self._files[name].read_rows(name, start, stop)

    def read_block(self, name: str, rows: range, columns: range) -> npt.NDArray[Any]:
        """Return a block of tensor `name`, seen as rows of its last dimension."""
        return self._files[name].read_block(name, rows, columns)

    def read_numbers(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Return elements [start, stop) of tensor `name`, whatever its shape."""
        return self._files[name].read_numbers(name, start, stop)

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return the whole of tensor `name` in memory of its own; it may be a single number."""
        if self.infos[name].shape:
            return self.read_rows(name, 0, self.infos[name].shape[0])
        return self._files[name].read(name).copy()

    def close(self) -> None:
        """Close every file."""
        for file in self._files.values():
            file.close()

    def _add_file(self, path: Path) -> SafetensorsFile | None:
        try:
            file = SafetensorsFile.open(path)
        except CheckpointError as error:
            self.reasons.append(error.message)
            return None
        for name, info in file.infos.items():
            if name in self._files:
                other = self._files[name].path.name
                self.reasons.append(f"{path}: {name}: also in {other}, expected once")
                continue
            self.infos[name] = info
            self._files[name] = file
        return file

    def _add_shards(self, index: Path) -> None:
        try:
            weight_map = _read_index(index)
        except CheckpointError as error:
            self.reasons.append(error.message)
            return
        promised: dict[str, list[str]] = {}
        for name, shard in weight_map.items():
            promised.setdefault(shard, []).append(name)
        for shard, names in sorted(promised.items()):
            path = index.parent / shard
            if not path.exists():
                self.reasons.append(
                    f"{path}: missing shard, which holds {names[0]}"
                    + (f" and {len(names) - 1} more tensors" if len(names) > 1 else "")
                )
                continue
            file = self._add_file(path)
            if file is None:
                continue
            for name in names:
                if name not in file.infos:
                    self.reasons.append(f"{path}: {name}: not in this shard, as {_INDEX} promises")


def _read_index(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map: {weight_map!r}, expected tensors and shards")
    for name, shard in weight_map.items():
        # A path would let a downloaded index point at any file of this machine.
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(f"{index}: {name}: shard {shard!r}, expected a file name")
    return weight_map


def _no_weights(directory: Path) -> str:
    pickles = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if pickles:
        return (
            f"{directory / pickles[0]}: a pickled checkpoint, which can run code when read;"
            f" expected {_SINGLE} (save the model again with save_pretrained)"
        )
    return f"{directory}: neither {_SINGLE} nor {_INDEX}"
