"""Collectives between the ranks of an engine, over MPI, on float32 arrays in place.

Owns the MPI communicators of this process, one for each group a program names. mpi4py is imported
when a communicator is opened, not before: one rank needs no MPI.
"""

from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.errors import ServeError, ToolchainError

Float32Array = npt.NDArray[np.float32]


class MpiCommunicator:
    """What one rank needs of its peers. Groups list world ranks, ascending, this one among them.

    Buffers are C-contiguous float32 and passed as they lie in memory; nothing is pickled. Used by
    one thread at a time.
    """

    def __init__(self, mpi: ModuleType) -> None:
        self._mpi = mpi
        self._world = mpi.COMM_WORLD
        self._groups: dict[tuple[int, ...], Any] = {}
        self.rank: int = self._world.Get_rank()
        self.size: int = self._world.Get_size()

    def allreduce(self, values: Float32Array, group: tuple[int, ...]) -> None:
        """Replace `values` by its sum over the group, the same bits on every rank."""
        self._of(group).Allreduce(self._mpi.IN_PLACE, self._buffer(values), op=self._mpi.SUM)

    def allgather(self, values: Float32Array, group: tuple[int, ...]) -> Float32Array:
        """Return every rank's `values`, stacked on a new first axis in the order of the group."""
        gathered: Float32Array = np.empty((len(group), *values.shape), np.float32)
        self._of(group).Allgather(self._buffer(values), self._buffer(gathered))
        return gathered

    def send(self, values: Float32Array, peer: int) -> None:
        """Hand `values` to world rank `peer`, which must `recv` as many."""
        self._world.Send(self._buffer(values), dest=peer)

    def recv(self, values: Float32Array, peer: int) -> None:
        """Fill `values` with what world rank `peer` sent."""
        self._world.Recv(self._buffer(values), source=peer)

    def abort(self, exit_code: int) -> None:
        """End every rank: peers that wait for one that failed would wait forever."""
        self._world.Abort(exit_code)

    def _of(self, group: tuple[int, ...]) -> Any:
        """Return the group's communicator; the first call for a group must be made by all of it."""
        assert self.rank in group and tuple(sorted(set(group))) == group, (self.rank, group)
        if group not in self._groups:
            members = self._world.Get_group().Incl(list(group))
            self._groups[group] = self._world.Create_group(members)
        return self._groups[group]

    def _buffer(self, values: Float32Array) -> list[Any]:
        assert values.dtype == np.float32 and values.flags.c_contiguous, values.dtype
        return [values, self._mpi.FLOAT]


def open_communicator(world_size: int) -> MpiCommunicator:
    """Join the MPI job this process was started in, which must have `world_size` ranks.

    Raises: ToolchainError when mpi4py or an MPI library is missing, ServeError for another size.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ToolchainError(
            f"mpi4py with an MPI library: {error}; an engine of {world_size} ranks needs it",
            hint="pip install 'llmc[mpi]'",
        ) from error
    communicator = MpiCommunicator(MPI)
    if communicator.size != world_size:
        raise ServeError(
            f"MPI job: {communicator.size} ranks, expected the engine's {world_size}",
            hint=f"start it with mpirun -n {world_size}",
        )
    return communicator
