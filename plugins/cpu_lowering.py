"""What a plugin's CPU lowering may ask of the target, and what it must export.

Each plugins/<op>/cpu.py exports `unsupported(call) -> list[str]`, every reason this call cannot be
lowered, and `lower(call, lowering) -> list[CpuOp]`, called only when there was none.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import numpy.typing as npt

from llmc.plugins.cpu_program import Rows


class Lowering(Protocol):
    """Access to one rank's checkpoint tensors and to the engine file being written."""

    @property
    def max_seq_len(self) -> int: ...
    @property
    def tokens_per_block(self) -> int: ...
    @property
    def kv_dtype(self) -> str:
        """Element type of the KV pool."""
        ...

    @property
    def dtype(self) -> str:
        """Element type of the checkpoint's unquantized weights."""
        ...

    def read(self, names: tuple[str, ...]) -> npt.NDArray[Any]:
        """Return checkpoint tensors, concatenated on the output axis."""
        ...

    def read_part(self, name: str, index: int) -> npt.NDArray[Any]:
        """Return [index] of a checkpoint tensor, along its first axis."""
        ...

    def write(self, name: str, array: npt.NDArray[Any], *, resident: bool = True) -> str:
        """Store `array` under `name`, once, and return the name.

        A tensor that is not resident is mapped from the file when loaded, not copied: for tables of
        which a step reads a few rows.
        """
        ...

    def write_parts(self, name: str, count: int, parts: Iterable[npt.NDArray[Any]]) -> str:
        """Store `count` arrays of one shape as one tensor [count, ...], each as it comes."""
        ...

    def add_value(self, name: str, rows: Rows, columns: int) -> None:
        """Declare the step buffer an op writes."""
        ...

    def rows(self, value: str) -> Rows:
        """Return what the rows of a declared value are."""
        ...
