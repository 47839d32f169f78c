"""What is known of a tensor without reading it."""

from dataclasses import dataclass
from math import prod

from llmc.dtypes import numpy_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Name, element type (llmc.dtypes) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * numpy_dtype(self.dtype).itemsize
