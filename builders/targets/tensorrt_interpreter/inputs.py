"""What every evaluation of a layer begins with: its inputs by place, its attributes by table."""

from collections.abc import Sequence
from typing import Literal, TypeVar

import torch

from llmc.builders.targets.tensorrt_interpreter.graph import Layer
from llmc.errors import UnsupportedError

Mode = Literal["ideal", "typed"]
"""ideal: floating math in float32, rounded nowhere but at Quantize layers. typed: each value is
rounded to its tensor's type."""

Inputs = Sequence[torch.Tensor | None]

Choice = TypeVar("Choice")


def tensor(layer: Layer, inputs: Inputs, index: int) -> torch.Tensor:
    """Return an input that must be there. Raises: UnsupportedError."""
    found = optional(inputs, index)
    if found is None:
        raise UnsupportedError(f"{layer.name}: {layer.kind} has no input {index}")
    return found


def optional(inputs: Inputs, index: int) -> torch.Tensor | None:
    return inputs[index] if index < len(inputs) else None


def integers(layer: Layer, inputs: Inputs, index: int, attribute: str) -> tuple[int, ...]:
    """Return what an attribute says, or an input where it is None. Raises: UnsupportedError."""
    found = layer.attrs[attribute]
    if found is None or optional(inputs, index) is not None:
        found = tensor(layer, inputs, index).reshape(-1).tolist()
    return tuple(int(number) for number in found)


def choose(layer: Layer, attribute: str, known: dict[str, Choice]) -> Choice:
    """Return what a table has for an attribute. Raises: UnsupportedError when it has nothing."""
    value = layer.attrs[attribute]
    if value not in known:
        raise UnsupportedError(
            f"{layer.name}: {layer.kind} with {attribute} {value}, the interpreter has "
            f"{', '.join(known)}"
        )
    return known[value]


def axes_of_mask(mask: int, rank: int) -> tuple[int, ...]:
    """Return the axes of a bit mask, the first in the lowest bit."""
    return tuple(axis for axis in range(rank) if mask >> axis & 1)
