"""Collectives between the ranks of an engine, over MPI, on numpy arrays in place.

Owns the MPI communicators of this process, one for each group a program names. mpi4py is imported
when a communicator is opened, not before: one rank needs no MPI.
"""

import faulthandler
import os
import sys
import time
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.errors import ServeError, ToolchainError

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]

MAX_SENDS = 8
"""Messages on their way to the next pipeline stage before a further one waits."""
_PATIENCE_SECONDS = 0.002
"""How long a rank looks for the next step without pause: about as long as sampling takes."""
_LONGEST_NAP_SECONDS = 0.005


class MpiCommunicator:
    """What one rank needs of its peers. Groups list world ranks, ascending, this one among them.

    Buffers are C-contiguous float32 and passed as they lie in memory; nothing is pickled. Used by
    one thread at a time.
    """

    def __init__(self, mpi: ModuleType) -> None:
        self._mpi = mpi
        self._world = mpi.COMM_WORLD
        self._groups: dict[tuple[int, ...], Any] = {}
        self._sends: list[tuple[Any, Float32Array]] = []
        self.rank: int = self._world.Get_rank()
        self.size: int = self._world.Get_size()
        local = self._world.Split_type(mpi.COMM_TYPE_SHARED)
        self.num_local: int = local.Get_size()
        """ranks on this host"""
        cores = tuple(sorted(os.sched_getaffinity(0)))
        sharing = local.allgather(cores).count(cores)
        self.num_threads: int = max(1, len(cores) // sharing)
        """Threads for this rank: its cores, shared out where a launcher bound nobody."""
        # MPI libraries wait by asking without pause. Where ranks outnumber cores that keeps a core
        # from the very rank that is waited for, until its time is up.
        self._yields = sharing > len(cores)
        local.Free()

    def allreduce(self, values: Float32Array, group: tuple[int, ...]) -> None:
        """Replace `values` by its sum over the group, the same bits on every rank."""
        buffer, total = self._buffer(values), self._mpi.SUM
        if self._yields:
            self._wait(self._of(group).Iallreduce(self._mpi.IN_PLACE, buffer, op=total))
        else:
            self._of(group).Allreduce(self._mpi.IN_PLACE, buffer, op=total)

    def allgather(self, values: Float32Array, group: tuple[int, ...]) -> Float32Array:
        """Return every rank's `values`, stacked on a new first axis in the order of the group."""
        gathered: Float32Array = np.empty((len(group), *values.shape), np.float32)
        request = self._of(group).Iallgather(self._buffer(values), self._buffer(gathered))
        self._wait(request)
        return gathered

    def send(self, values: Float32Array, peer: int) -> None:
        """Hand a copy of `values` to world rank `peer`, which must `recv` as many.

        Returns before they have arrived: the peer may still be busy with an earlier step.
        """
        while len(self._sends) >= MAX_SENDS:
            self._wait(self._sends.pop(0)[0])
        copy = values.copy()
        self._sends.append((self._world.Isend(self._buffer(copy), dest=peer), copy))

    def recv(self, values: Float32Array, peer: int) -> None:
        """Fill `values` with what world rank `peer` sent."""
        self._wait(self._world.Irecv(self._buffer(values), source=peer))

    def broadcast(self, values: Int32Array, *, patient: bool = False) -> None:
        """Replace every rank's `values` by rank 0's.

        `patient`: what comes may be long in coming, so do not keep a core busy meanwhile.
        """
        request = self._world.Ibcast([values, self._mpi.INT32_T], root=0)
        if patient:
            started = time.monotonic()
            while not request.Test():
                waited = time.monotonic() - started
                if waited > _PATIENCE_SECONDS and not self._is_sending():
                    time.sleep(min(waited / 10, _LONGEST_NAP_SECONDS))
                elif self._yields:
                    os.sched_yield()
        else:
            self._wait(request)

    def share(self, value: str) -> list[str]:
        """Return every rank's `value`, by rank; for words at the start, not for steps."""
        values: list[str] = self._world.allgather(value)
        return values

    def abort(self, exit_code: int) -> None:
        """End every rank: peers that wait for one that failed would wait forever."""
        self._world.Abort(exit_code)

    def _is_sending(self) -> bool:
        """Forget sends that are done; return whether one is not, which only looking moves on."""
        self._sends = [(request, copy) for request, copy in self._sends if not request.Test()]
        return bool(self._sends)

    def _wait(self, request: Any) -> None:
        if not self._yields:
            request.Wait()
            return
        while not request.Test():
            os.sched_yield()

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


@cache
def open_communicator(world_size: int) -> MpiCommunicator:
    """Join the MPI job this process was started in, which must have `world_size` ranks.

    All of them do so together; there is one communicator in a process.
    Raises: ToolchainError when mpi4py or an MPI library is missing, ServeError for another size.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ToolchainError(
            f"mpi4py with an MPI library: {error}; an engine of {world_size} ranks needs it",
            hint="pip install 'llmc[mpi]'",
        ) from error
    size = MPI.COMM_WORLD.Get_size()
    if size != world_size:
        # A launcher of another MPI than mpi4py's starts ranks that each see only themselves.
        raise ServeError(
            f"MPI job: {size} ranks, expected {world_size}; mpi4py uses {describe_library()}",
            hint=f"start it with mpirun -n {world_size} of that MPI; see `llmc doctor mpi`",
        )
    return MpiCommunicator(MPI)


def leave(*, timeout_seconds: float = 30.0) -> None:
    """Leave the MPI job this process may be in, with all its ranks; nothing else may follow.

    Triton ends a model's process without waiting for Python's own end, which would do it. Ranks
    wait for each other in there, and no thread of Python's may run meanwhile: where one does not
    come, faulthandler ends this process with exit code 1 and a traceback.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        faulthandler.dump_traceback_later(timeout_seconds, exit=True)
        mpi.Finalize()
        faulthandler.cancel_dump_traceback_later()


def describe_library() -> str:
    """Return name and version of the MPI library that mpi4py has loaded, e.g. "MPICH 5.0.2"."""
    from mpi4py import MPI

    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"
