"""The rules of a family read backwards: which rows of a checkpoint are a Hugging Face tensor.

A rule says which rows of Hugging Face tensors a checkpoint tensor is made of (`rules.Rows`). Read
from the other end the same rows say where each row of a Hugging Face tensor is kept, so that no
family states it twice. What no rule keeps cannot be given back, and is a reason.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.arch import ModelArch
from llmc.builders.families.family import Family
from llmc.builders.families.rules import Rows
from llmc.checkpoint import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows of checkpoint tensor `spec` from `first` on are `rows` of a Hugging Face tensor."""

    spec: TensorSpec
    first: int
    rows: Rows


def pieces_of(family: Family, arch: ModelArch, spec: TensorSpec) -> list[Piece]:
    """Return what the unsplit tensor of `spec` holds of Hugging Face tensors, in its own order."""
    pieces, first = [], 0
    for rows in family.sources(spec, arch):
        pieces.append(Piece(spec=spec, first=first, rows=rows))
        first += rows.count
    return pieces


def by_source(
    family: Family, arch: ModelArch, specs: Iterable[TensorSpec]
) -> dict[str, list[Piece]]:
    """Return the Hugging Face tensors that the tensors of `specs` are made of, and their pieces.

    An output tensor that is tied to the embedding is that tensor, and no other.
    """
    found: dict[str, list[Piece]] = {}
    for spec in specs:
        if arch.tie_word_embeddings and spec.name == family.tied[0]:
            continue
        for piece in pieces_of(family, arch, spec):
            found.setdefault(piece.rows.source, []).append(piece)
    return found


def lost_rows(source: str, pieces: list[Piece]) -> str | None:
    """Return why `pieces` do not make up Hugging Face tensor `source`, None when they do."""
    shape = pieces[0].rows.shape
    height = _height(pieces[0].rows)
    kept: npt.NDArray[np.uint8] = np.zeros(height, np.uint8)
    for piece in pieces:
        kept[piece.rows.start : piece.rows.stop : piece.rows.step] += 1
    if (kept == 1).all():
        return None
    missing = int((kept == 0).sum())
    return f"{source} {shape}: {missing} of {height} rows are not in a checkpoint"


def row_numbers(pieces: list[Piece]) -> npt.NDArray[np.intp]:
    """Return, for each row of a Hugging Face tensor, the row of the checkpoint tensor it is."""
    numbers: npt.NDArray[np.intp] = np.empty(_height(pieces[0].rows), np.intp)
    for piece in pieces:
        rows = piece.rows
        last = piece.first + rows.count
        numbers[rows.start : rows.stop : rows.step] = np.arange(piece.first, last)
    return numbers


def place(whole: npt.NDArray[Any], rows: Rows, start: int, values: npt.NDArray[Any]) -> None:
    """Put `values` [n, columns] into a Hugging Face tensor: rows `start` and on among `rows`."""
    numbers = np.array(rows.range[start : start + len(values)])
    if rows.vector:
        whole.reshape(-1)[numbers] = values.reshape(-1)
        return
    matrices = whole.reshape(-1, *whole.shape[-2:])
    if rows.transposed:
        matrices = matrices.swapaxes(1, 2)
    height = matrices.shape[1]
    matrices[numbers // height, numbers % height] = values


def is_straight(rows: Rows) -> bool:
    """Say whether the rows follow one another in the file, as in the checkpoint."""
    return rows.step == 1 and not rows.transposed


def _height(rows: Rows) -> int:
    """Return how many rows the Hugging Face tensor of `rows` has in all."""
    if rows.vector:
        return prod(rows.shape)
    if rows.transposed:
        return prod(rows.shape[:-2]) * rows.shape[-1]
    return prod(rows.shape[:-1])
