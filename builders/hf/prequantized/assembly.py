"""A linear module of a checkpoint from the quantized Hugging Face modules it is made of.

Rows that the model keeps in another order are put into the checkpoint's, and experts are stacked:
each quantized tensor follows the rows of its weight as its format says.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmc.arch import ModelArch
from llmc.builders.families.family import Family
from llmc.builders.families.inverse import pieces_of
from llmc.builders.hf.prequantized.scheme import Scheme, Source, Tensors
from llmc.checkpoint import CheckpointConfig, Linear, linear_specs
from llmc.dtypes import WEIGHT_DTYPES
from llmc.quant.format import EXPERTS_SHARE, Choice, load_format

Order = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """What a linear module is made of.

    `modules` are Hugging Face's, those of one expert after another, `rows` how many each has.
    `order` are, for each row of a module (of one expert), which of theirs it is, counted from the
    first; None where they follow one another. `experts` None: there are none.
    """

    modules: tuple[str, ...]
    rows: tuple[int, ...]
    order: Order | None
    experts: int | None

    def tensors(self, scheme: Scheme, choice: Choice, read: Callable[[str], Source]) -> Tensors:
        """Return the checkpoint's tensors by role, unsplit; `read` gives a Hugging Face module."""
        count = self.experts or 1
        each = len(self.modules) // count
        made = []
        for first in range(0, len(self.modules), each):
            sources = [read(name) for name in self.modules[first : first + each]]
            tensors = scheme.convert(sources, choice)
            made.append(tensors if self.order is None else _in_order(tensors, scheme, self.order))
        if self.experts is None:
            return made[0]
        return {
            role: np.max([one[role] for one in made], axis=0)
            if role in EXPERTS_SHARE
            else np.stack([one[role] for one in made])
            for role in made[0]
        }


def assembly_of(family: Family, arch: ModelArch, linear: Linear) -> Assembly | None:
    """Return what `linear` is made of, None when a part is stored in another way than [out, in]."""
    plain = CheckpointConfig(arch=arch, dtype=WEIGHT_DTYPES[0])
    starts: dict[str, int] = {}
    rows: dict[str, int] = {}
    pieces = pieces_of(family, arch, next(linear_specs(plain, linear)))
    for piece in pieces:
        source = piece.rows
        if source.transposed or source.plus_one or source.scales or len(source.shape) != 2:
            return None
        starts.setdefault(source.source, sum(rows.values()))
        rows.setdefault(source.source, source.shape[0])
    order = np.concatenate([starts[one.rows.source] + np.array(one.rows.range) for one in pieces])
    # Every expert is as the first.
    order = order[: linear.num_out]
    return Assembly(
        modules=tuple(name.removesuffix(".weight") for name in rows),
        rows=tuple(rows.values()),
        order=None if np.array_equal(order, np.arange(len(order))) else order,
        experts=linear.experts,
    )


def _in_order(tensors: Tensors, scheme: Scheme, order: Order) -> Tensors:
    """Return the tensors of a module with its rows taken in `order`."""
    found = dict(tensors)
    for tensor in load_format(scheme.algo).tensors:
        if tensor.out_axis is None or tensor.role not in tensors:
            continue
        values = tensors[tensor.role]
        # So many rows share a number of the tensor: a byte of INT4 has two.
        factor = len(order) // values.shape[tensor.out_axis]
        places = order[::factor] // factor
        assert np.array_equal(
            order, np.repeat(places, factor) * factor + np.arange(len(order)) % factor
        )
        found[tensor.role] = np.take(values, places, axis=tensor.out_axis)
    return found
