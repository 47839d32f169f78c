"""Whole, unsplit checkpoint tensors, read from the Hugging Face weights when they are asked for."""

from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.builders.casting import cast, first_not_finite
from llmc.builders.hf.preflight import HfModel
from llmc.dtypes import numpy_dtype
from llmc.errors import CheckpointError


class TensorSource:
    """Tensors of a model under their checkpoint names, in the checkpoint's dtype."""

    def __init__(self, model: HfModel, dtype: str) -> None:
        self._model = model
        self._dtype = dtype

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return the whole tensor `name`.

        Raises: CheckpointError naming tensor and file for a value that is not finite.
        """
        weights = self._model.weights
        sources = self._model.sources[name]
        shapes = [weights.infos[source].shape for source in sources]
        length = sum(shape[0] for shape in shapes)
        whole: npt.NDArray[Any] = np.empty((length, *shapes[0][1:]), numpy_dtype(self._dtype))
        start = 0
        for source, shape in zip(sources, shapes, strict=True):
            rows = self._checked(source, weights.read_rows(source, 0, shape[0]))
            whole[start : start + shape[0]] = rows
            start += shape[0]
        return whole

    def read_rows(self, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return some rows of tensor `name`, in the order asked for."""
        (source,) = self._model.sources[name]
        read = self._model.weights.read_rows
        return np.concatenate(
            [self._checked(source, read(source, row, row + 1)) for row in rows.tolist()]
        )

    def _checked(self, source: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        path = self._model.weights.path(source)
        for array in (values, converted := cast(values, self._dtype)):
            bad = first_not_finite(array)
            if bad is not None:
                raise CheckpointError(
                    f"{path}: {source}: {float(values[bad]):g} at row {bad[0]} is not finite"
                    f" as {self._dtype}"
                )
        return converted
