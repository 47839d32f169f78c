"""An engine whose ranks are processes of their own: scheduled here, stepped there.

The process that schedules is no rank. It starts the ranks (llmc.runtime.rank), sends each step's
batch to rank 0 through a socket and finds the logits in memory both have mapped. So a lost rank
costs the engine, not the requests that wait for it.
"""

import contextlib
import json
import logging
import mmap
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llmc.errors import ServeError
from llmc.runtime.batch import Batch
from llmc.runtime.engine import EngineLimits, EngineLostError, KvCacheConfig, RankConfig
from llmc.runtime.rank_files import read_mapping
from llmc.runtime.watch import Watch, is_ours
from llmc.runtime.worker import START_SECONDS, pack

log = logging.getLogger(__name__)

Float32Array = npt.NDArray[np.float32]

StartRanks = Callable[[list[str], int], "subprocess.Popen[bytes]"]
"""Starts so many ranks of `python -m llmc.runtime.rank ARGUMENTS` as one MPI job. Closing the
process's standard input ends all of them."""

LENGTH = np.dtype(np.int32)
"""What each message of integers begins with: how many follow."""
_END_SECONDS = 10.0


class OrchestratedEngine:
    """The ranks of one engine, started and stepped from outside; an Engine to the executor."""

    def __init__(
        self, engine_dir: Path, kv: KvCacheConfig, ranks: RankConfig, start: StartRanks
    ) -> None:
        """Start the ranks and wait until all are loaded.

        Raises: EngineLostError naming the rank that failed, stopped or never came.
        """
        world_size = read_mapping(engine_dir).world_size
        self._watch = Watch(
            range(world_size),
            timeout_seconds=ranks.timeout_seconds,
            start_seconds=START_SECONDS,
        )
        self._closed = False
        name = f"llmc-{secrets.token_hex(8)}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("\0" + name)
            listener.listen(1)
            arguments = {
                "engine_dir": str(engine_dir),
                "watch": self._watch.address,
                "data": name,
                "timeout_seconds": ranks.timeout_seconds,
                "max_tokens": kv.max_tokens,
                "free_memory_fraction": kv.free_memory_fraction,
            }
            self._process = start([json.dumps(arguments)], world_size)
            try:
                self._data = self._accept(listener)
            except BaseException:
                self._watch.close()
                self._end_processes()
                raise
        self._watch.subscribe(self._wake)
        try:
            self.limits, self._logits = self._receive_limits()
        except BaseException:
            self.close()
            raise

    def forward(self, batch: Batch) -> Float32Array:
        """Run one step on every rank (runtime.engine.Engine.forward). Raises: EngineLostError."""
        packed = pack(batch)
        self._send(np.concatenate((np.array([packed.size], LENGTH), packed)).tobytes())
        num_logits = int(np.frombuffer(self._receive(LENGTH.itemsize), LENGTH)[0])
        return self._logits[:num_logits]

    def close(self) -> None:
        """End the ranks, by force if they do not; again is harmless."""
        if self._closed:
            return
        self._closed = True
        in_order = self._watch.loss is None
        self._watch.close()
        if in_order:
            with contextlib.suppress(OSError):
                self._data.sendall(np.zeros(1, LENGTH).tobytes())
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        self._end_processes()
        self._data.close()

    def _end_processes(self) -> None:
        """Let the guard of the ranks kill what is left of them."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _accept(self, listener: socket.socket) -> socket.socket:
        """Wait for rank 0, unless all ranks end before."""
        listener.settimeout(0.1)
        while True:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                if is_ours(connection):
                    connection.settimeout(None)
                    return connection
                connection.close()
            if self._watch.loss is not None:
                raise EngineLostError(self._watch.loss)
            if self._process.poll() is not None:
                raise EngineLostError(
                    f"the ranks ended with code {self._process.returncode} before they were ready"
                )

    def _receive_limits(self) -> tuple[EngineLimits, Float32Array]:
        """Take what rank 0 says of the engine, and the memory its logits will be in."""
        data, (handle, *_), _, _ = socket.recv_fds(self._data, 65536, 1)
        if not data:
            raise self._lost()
        limits = EngineLimits(**json.loads(data))
        with os.fdopen(handle, "r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        logits = np.frombuffer(memory, np.float32)
        return limits, logits.reshape(limits.max_batch_size, limits.vocab_size)

    def _send(self, data: bytes) -> None:
        try:
            self._data.sendall(data)
        except OSError as error:
            raise self._lost() from error

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                more = self._data.recv(count - len(data))
            except OSError as error:
                raise self._lost() from error
            if not more:
                raise self._lost()
            data += more
        return data

    def _wake(self, reason: str) -> None:
        """Let nobody wait for ranks that are lost."""
        with contextlib.suppress(OSError):
            self._data.shutdown(socket.SHUT_RDWR)

    def _lost(self) -> EngineLostError:
        """Return why rank 0 is gone; the watch may learn of it a moment after the socket."""
        deadline = time.monotonic() + 1.0
        while self._watch.loss is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return EngineLostError(self._watch.loss or "rank 0 has closed its connection")


def open_orchestrated(
    engine_dir: Path, kv: KvCacheConfig, ranks: RankConfig, start: StartRanks | None
) -> OrchestratedEngine:
    """Start an engine's ranks. Raises: ServeError without a way to start them."""
    if start is None:
        raise ServeError("launch_mode orchestrator: only the emitted Triton model starts ranks")
    return OrchestratedEngine(engine_dir, kv, ranks, start)
