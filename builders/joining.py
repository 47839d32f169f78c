"""A checkpoint's tensors as if it had not been split: the parts of all ranks, joined again.

The inverse of `TensorSpec.part`. Padding is dropped, of rows that several ranks hold any rank's are
taken, and layers count from the model's first, whatever stage they are in.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from llmc.checkpoint import Checkpoint, TensorSpec, file_mapping, tensor_specs
from llmc.dtypes import numpy_dtype
from llmc.errors import CheckpointError
from llmc.quant.layouts import restore
from llmc.weights import SafetensorsFile


class WholeTensors:
    """The unsplit tensors of a checkpoint. `specs` are all of them by their global names."""

    __slots__ = ("_checkpoint", "_stages", "specs")

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.specs: dict[str, TensorSpec] = {}
        self._stages: dict[str, int] = {}
        mapping = checkpoint.config.mapping
        for stage in range(mapping.pp_size):
            for spec in tensor_specs(checkpoint.config, stage * mapping.tp_size):
                self.specs[spec.name] = spec
                self._stages[spec.name] = stage

    def dtype(self, spec: TensorSpec) -> str:
        """Return the dtype the tensor is stored in."""
        return spec.dtype or self._checkpoint.config.dtype

    def has(self, spec: TensorSpec) -> bool:
        """Say whether the checkpoint holds the tensor; TensorRT-LLM may do without some."""
        file, name = next(self._parts(spec))
        return name in file.infos

    def read(self, spec: TensorSpec, packed_bits: Literal[4, 8] | None = None) -> npt.NDArray[Any]:
        """Return the whole tensor; of a checkpoint that is not split, a view into its file.

        `packed_bits`: it is a weight of so many bits in the checkpoint's layout, which is undone.
        Raises: CheckpointError when ranks differ in what is no part of anything.
        """
        layout = self._checkpoint.config.layout
        size = self._checkpoint.config.mapping.tp_size
        whole: npt.NDArray[Any] | None = None
        for tp_rank, (file, name) in enumerate(self._parts(spec)):
            part = file.read(name)
            if packed_bits is not None and layout is not None:
                part = restore(part, layout, bits=packed_bits)
            if size == 1:
                return part
            if whole is None:
                whole = np.empty(spec.shape, numpy_dtype(self.dtype(spec)))
            # A bias added once may be zero on the others.
            elif _is_shared(spec) and not spec.name.endswith(".bias"):
                _require_equal(whole, part, f"{file.path}: {name}")
            if tp_rank == 0 or not _is_shared(spec):
                _put(whole, spec, part, tp_rank, size)
            file.release()
        assert whole is not None
        return whole

    def release(self) -> None:
        """Give back the memory of what was read; arrays stay valid."""
        for rank in range(self._checkpoint.config.num_rank_files):
            self._checkpoint.rank(rank).release()

    def _parts(self, spec: TensorSpec) -> Iterator[tuple[SafetensorsFile, str]]:
        """Yield every rank's file, and the tensor's name there."""
        config = self._checkpoint.config
        first = self._stages[spec.name] * config.mapping.tp_size
        layers = file_mapping(config.mapping, first).stage_layers(config.arch.num_hidden_layers)
        for tp_rank in range(config.mapping.tp_size):
            yield self._checkpoint.rank(first + tp_rank), spec.local_name(layers.start)


def _is_shared(spec: TensorSpec) -> bool:
    """Say whether every rank holds all of the tensor."""
    return spec.axis is None and spec.expert_parallel in (None, 1)


def _require_equal(first: npt.NDArray[Any], other: npt.NDArray[Any], where: str) -> None:
    if first.tobytes() == other.tobytes():
        return
    raise CheckpointError(
        f"{where}: not as in the first rank: each rank's part was rounded by itself, and no whole"
        " weight has these scales",
        hint="convert with tp 1",
    )


def _put(
    whole: npt.NDArray[Any], spec: TensorSpec, part: npt.NDArray[Any], tp_rank: int, tp_size: int
) -> None:
    """Put a rank's part where it belongs."""
    ep = spec.expert_parallel or 1
    if spec.expert_parallel is not None:
        count = spec.shape[0] // ep
        first = tp_rank % ep * count
        whole = whole[first : first + count]
    if spec.axis is None:
        whole[...] = part
        return
    # Which places of the axis the rank has follows from splitting their numbers; 0 is padding.
    numbers = np.arange(1, spec.shape[spec.axis] + 1)
    line = replace(spec, shape=numbers.shape, axis=0, expert_parallel=None)
    held = line.part(numbers, tp_rank // ep, tp_size // ep)
    kept = held > 0
    np.moveaxis(whole, spec.axis, 0)[held[kept] - 1] = np.moveaxis(part, spec.axis, 0)[kept]
