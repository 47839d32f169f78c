"""Whole, unsplit checkpoint tensors, read from the Hugging Face weights when they are asked for."""

from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.builders.hf.preflight import HfModel
from llmc.builders.reading import read_pieces, read_rows
from llmc.dtypes import numpy_dtype


class TensorSource:
    """Tensors of a model under their checkpoint names, in the checkpoint's dtype."""

    def __init__(self, model: HfModel, dtype: str) -> None:
        self._model = model
        self._dtype = dtype

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return the whole tensor `name`.

        Raises: CheckpointError naming tensor and file for a value that is not finite.
        """
        spec = self._model.specs[name]
        whole: npt.NDArray[Any] = np.empty(spec.shape, numpy_dtype(spec.dtype or self._dtype))
        rows = whole.reshape(-1, spec.shape[-1]) if spec.is_matrix else whole.reshape(-1)
        first = 0
        for source in self._model.sources[name]:
            for start, piece in read_pieces(self._model.weights, source, spec.dtype or self._dtype):
                rows[first + start : first + start + len(piece)] = piece
            first += source.count
        return whole

    def read_rows(self, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return some rows of tensor `name`, in the order asked for."""
        (source,) = self._model.sources[name]
        return np.concatenate(
            [
                read_rows(
                    self._model.weights,
                    source.part(row, row + 1),
                    self._dtype,
                )
                for row in rows.tolist()
            ]
        )
