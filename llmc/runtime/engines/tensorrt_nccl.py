"""A NCCL communicator for plans of several ranks, made over the ranks' MPI communicator."""

import ctypes
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from llmc.errors import ServeError, ToolchainError

UNIQUE_ID_BYTES = 128
"""Source: NCCL_UNIQUE_ID_BYTES in nccl.h."""


class Link(Protocol):
    """Point to point between ranks (llmc.runtime.comm.MpiCommunicator)."""

    rank: int
    size: int

    def send(self, values: npt.NDArray[np.float32], peer: int) -> None: ...
    def recv(self, values: npt.NDArray[np.float32], peer: int) -> None: ...


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * UNIQUE_ID_BYTES),)


def open_nccl(link: Link) -> Any:
    """Return a capsule with this rank's ncclComm_t, for IExecutionContext.set_communicator.

    The GPU of this rank must be the current one. Raises: ToolchainError without NCCL, ServeError.
    """
    try:
        nccl = ctypes.CDLL("libnccl.so.2")
    except OSError as error:
        raise ToolchainError(
            f"NCCL cannot be loaded: {error}; an engine of {link.size} ranks needs it",
            hint="pip install nvidia-nccl-cu13, and put its lib folder on LD_LIBRARY_PATH",
        ) from error
    unique = _UniqueId()
    if link.rank == 0:
        _check(nccl.ncclGetUniqueId(ctypes.byref(unique)), "ncclGetUniqueId")
    share_bytes(link, memoryview(unique).cast("B"))
    communicator = ctypes.c_void_p()
    status = nccl.ncclCommInitRank(ctypes.byref(communicator), link.size, unique, link.rank)
    _check(status, "ncclCommInitRank")
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    )
    return new(communicator, None, None)


def share_bytes(link: Link, data: memoryview) -> None:
    """Give every rank the bytes of rank 0; their number is a multiple of 4."""
    words = np.frombuffer(data, np.float32)
    if link.rank == 0:
        for peer in range(1, link.size):
            link.send(words.copy(), peer)
    else:
        received = np.empty_like(words)
        link.recv(received, 0)
        data[:] = received.tobytes()


def _check(status: int, function: str) -> None:
    if status != 0:
        raise ServeError(f"{function}: NCCL error {status}")
