"""What ranks in lockstep exchange at a collective.

TensorRT has no getters for a collective's operation and group: they are read from its metadata
(`reader`), and here held against what TensorRT does show, the number of ranks and the result's
shape.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from llmc.builders.targets.tensorrt_interpreter.graph import Layer
from llmc.builders.targets.tensorrt_interpreter.inputs import choose
from llmc.errors import BuildError

_COLLECTIVES: dict[str, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    "ALL_REDUCE": lambda parts: torch.stack(parts).sum(0),
    "ALL_GATHER": lambda parts: torch.cat(parts, 0),
}

Waiting = tuple[Layer, torch.Tensor] | None


def exchange(waiting: Sequence[Waiting]) -> Iterator[torch.Tensor]:
    """Yield what each rank receives; `waiting` has the collective each has come to, and its part.

    Raises: BuildError when a rank of a group has ended, or waits in another collective.
    """
    for rank, place in enumerate(waiting):
        if place is None:
            raise BuildError(f"rank {rank} ended while others wait in {_names(waiting)}")
    for rank, place in enumerate(waiting):
        assert place is not None
        layer, group = place[0], place[0].attrs["group"]
        if rank not in group or max(group) >= len(waiting):
            raise BuildError(f"{layer.name}: group {group}, rank {rank} of {len(waiting)} is in it")
        if layer.attrs["num_ranks"] != len(group):
            raise BuildError(f"{layer.name}: num_ranks {layer.attrs['num_ranks']}, group {group}")
        parts = []
        for peer in group:
            other = waiting[peer]
            assert other is not None
            if other[0].attrs != layer.attrs or other[1].shape != place[1].shape:
                raise BuildError(f"ranks do not meet: {_names(waiting)}")
            parts.append(other[1])
        yield choose(layer, "collective", _COLLECTIVES)(parts)


def _names(waiting: Sequence[Waiting]) -> str:
    return ", ".join(place[0].name for place in waiting if place is not None)
