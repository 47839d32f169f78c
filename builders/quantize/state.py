"""What survives a kill: the hidden states before the next layer, and the layers already done.

A state directory belongs to one key, which stands for everything the result depends on. Each file
is written under another name, flushed and renamed; `state.json` comes last, so that what it counts
is there.
"""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.builders.quantize.site import Floats, Tensors
from llmc.dtypes import dtype_name
from llmc.tensors import TensorInfo
from llmc.weights import SafetensorsFile, SafetensorsWriter

log = logging.getLogger(__name__)

STATE_PREFIX = ".calibration-"


class State:
    """Progress of one calibration. `next_layer` is the first that is not done."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.next_layer = 0

    @classmethod
    def open(cls, parent: Path, key: str) -> "State":
        """Begin in `parent`, or go on where a run of the same `key` was stopped.

        States of other keys in `parent` are removed: nothing will ever go on with them.
        """
        directory = parent / f"{STATE_PREFIX}{key[:16]}"
        for other in parent.glob(f"{STATE_PREFIX}*"):
            if other != directory:
                log.info("%s: removed, it belongs to other settings", other)
                shutil.rmtree(other)
        directory.mkdir(parents=True, exist_ok=True)
        state = cls(directory)
        record = directory / "state.json"
        if record.exists():
            state.next_layer = json.loads(record.read_text(encoding="utf-8"))["next_layer"]
            log.info("%s: going on at layer %d", directory, state.next_layer)
        return state

    def layer_file(self, layer: int) -> SafetensorsFile:
        """Open the finished tensors of `layer`; the caller closes it."""
        return SafetensorsFile.open(self._layer_path(layer))

    def finish_layer(self, layer: int, tensors: Tensors) -> None:
        """Keep the tensors of `layer`; from now on it is done and its input is not needed."""
        assert layer == self.next_layer, (layer, self.next_layer)
        infos = [
            TensorInfo(name=name, dtype=dtype_name(values.dtype), shape=values.shape)
            for name, values in sorted(tensors.items())
        ]
        path = self._layer_path(layer)
        unfinished = path.with_suffix(".tmp")
        unfinished.unlink(missing_ok=True)
        with SafetensorsWriter(unfinished, infos) as writer:
            for info in infos:
                writer.write(info.name, tensors[info.name])
        following = self._hidden_path(layer + 1)
        if following.exists():
            _flush(following)
        _publish(unfinished, path)
        self.next_layer = layer + 1
        record = self.directory / "state.json"
        unfinished = record.with_suffix(".tmp")
        unfinished.write_text(json.dumps({"next_layer": self.next_layer}), encoding="utf-8")
        _publish(unfinished, record)
        self._hidden_path(layer).unlink(missing_ok=True)

    def write_hidden(self, layer: int) -> "HiddenWriter":
        """Begin the hidden states that enter `layer`."""
        return HiddenWriter(self._hidden_path(layer))

    def read_hidden(self, layer: int, start: int, stop: int, width: int) -> Floats:
        """Return hidden states [stop - start, width] that enter `layer`, from token `start` on."""
        count, offset = (stop - start) * width, start * width * 4
        values = np.fromfile(self._hidden_path(layer), np.float32, count, offset=offset)
        assert values.size == count, (layer, start, stop, values.size)
        return values.reshape(stop - start, width)

    def _layer_path(self, layer: int) -> Path:
        return self.directory / f"layer-{layer}.safetensors"

    def _hidden_path(self, layer: int) -> Path:
        return self.directory / f"hidden-{layer}.f32"


def remove_states(parent: Path) -> None:
    """Remove every state in `parent`: the result is elsewhere now."""
    for directory in parent.glob(f"{STATE_PREFIX}*"):
        shutil.rmtree(directory)


class HiddenWriter:
    """Appends hidden states [T, H]; the file has its name only when the block ends well.

    It is flushed when the layer before it is finished: until then nobody goes on from it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = path.with_suffix(".tmp")
        self._file = self._unfinished.open("wb")

    def append(self, hidden: npt.NDArray[np.float32]) -> None:
        """Write the next tokens."""
        self._file.write(np.ascontiguousarray(hidden, np.float32).data)

    def __enter__(self) -> "HiddenWriter":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._file.close()
        if kind is None:
            os.replace(self._unfinished, self._path)
        else:
            self._unfinished.unlink()


def _publish(unfinished: Path, final: Path) -> None:
    """Give a written file its name, after its bytes are on the disk."""
    _flush(unfinished)
    os.replace(unfinished, final)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
