"""One rank of an engine that another process schedules (orchestrator.py starts these).

mpirun -n N python -m llmc.runtime.rank JSON
"""

import json
import logging
import mmap
import os
import socket
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmc.errors import LlmcError
from llmc.log import configure
from llmc.runtime.comm import open_communicator
from llmc.runtime.engine import KvCacheConfig
from llmc.runtime.orchestrator import LENGTH
from llmc.runtime.rank_files import read_mapping
from llmc.runtime.watch import Report
from llmc.runtime.worker import LeadEngine, end_process, follow, load_rank, unpack

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arguments:
    engine_dir: str
    watch: str
    data: str
    timeout_seconds: float
    max_tokens: int | None
    free_memory_fraction: float


def main(arguments: _Arguments) -> int:
    """Be this rank until the scheduling process says that it is over; return the exit code."""
    engine_dir = Path(arguments.engine_dir)
    mapping = read_mapping(engine_dir)
    comm = open_communicator(mapping.world_size)
    report = Report(
        arguments.watch,
        rank=comm.rank,
        timeout_seconds=arguments.timeout_seconds,
        on_loss=lambda reason: end_process(comm.rank, reason),
    )
    kv = KvCacheConfig(
        max_tokens=arguments.max_tokens, free_memory_fraction=arguments.free_memory_fraction
    )
    try:
        engine = load_rank(engine_dir, kv, comm)
        if comm.rank == 0:
            serve(LeadEngine(engine, comm, pp_size=mapping.pp_size), arguments.data)
        else:
            follow(engine, comm, pp_size=mapping.pp_size)
    except Exception as error:  # the process's boundary: its peers would wait forever
        reason = error.message if isinstance(error, LlmcError) else repr(error)
        if not isinstance(error, LlmcError):
            log.exception("rank %d failed", comm.rank)
        report.fail(reason)
        end_process(comm.rank, reason)
    return 0


def serve(engine: LeadEngine, address: str) -> None:
    """Step the batches that come through the socket; logits go into memory both have mapped."""
    limits = engine.limits
    with socket.socket(socket.AF_UNIX) as data:
        data.connect("\0" + address)
        shape = (limits.max_batch_size, limits.vocab_size)
        # Memory without a name: nothing is left of it when both processes are gone.
        handle = os.memfd_create("llmc-logits")
        os.ftruncate(handle, 4 * shape[0] * shape[1])
        logits = np.frombuffer(mmap.mmap(handle, 0), np.float32).reshape(shape)
        socket.send_fds(data, [json.dumps(asdict(limits)).encode()], [handle])
        os.close(handle)
        while (length := int(np.frombuffer(_read(data, LENGTH.itemsize), LENGTH)[0])) > 0:
            packed = np.frombuffer(_read(data, length * LENGTH.itemsize), LENGTH)
            found = engine.forward(unpack(packed))
            logits[: len(found)] = found
            data.sendall(np.array([len(found)], LENGTH).tobytes())
    engine.close()


def _read(connection: socket.socket, count: int) -> bytearray:
    """Return `count` bytes; when nobody sends any more the report is about to end this process."""
    found = bytearray(count)
    view = memoryview(found)
    while view:
        received = connection.recv_into(view)
        if not received:
            threading.Event().wait()
        view = view[received:]
    return found


def _parse(text: str) -> _Arguments:
    fields: dict[str, Any] = json.loads(text)
    return _Arguments(**fields)


if __name__ == "__main__":
    configure("warning")
    sys.exit(main(_parse(sys.argv[1])))
