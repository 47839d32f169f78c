"""Who of an engine's ranks is alive: heartbeats beside MPI, which itself waits for ever.

The process that schedules keeps a Watch, every other rank a Report to it, over a socket. A killed
process closes its socket, a stopped one falls silent, one that fails says why before it goes. Each
side learns of it within `timeout_seconds`; what follows is up to its callback.
"""

import contextlib
import json
import logging
import os
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from llmc.errors import ServeError

log = logging.getLogger(__name__)

OnLoss = Callable[[str], None]

_BEAT, _GOODBYE, _FAILURE = b".", b"q", b"!"
_PEER_CREDENTIALS = struct.Struct("3i")
"""pid, uid, gid of who connected to a Unix socket."""


@dataclass(slots=True, eq=False)
class _Rank:
    """One connection, from the moment it says who it is."""

    number: int
    where: str
    last: float
    received: bytearray = field(default_factory=bytearray)

    def __str__(self) -> str:
        return f"rank {self.number} ({self.where})"


class Watch:
    """The side of the process that schedules. `loss` is why the ranks are lost, None while not."""

    def __init__(
        self,
        ranks: range,
        *,
        timeout_seconds: float,
        start_seconds: float,
        host: str | None = None,
    ) -> None:
        """Listen for `ranks`, which have `start_seconds` to come, at `address`.

        On `host`, or only within this machine.
        """
        self._ranks, self._timeout = ranks, timeout_seconds
        self._start_deadline = time.monotonic() + start_seconds
        self._listener, self.address, self._token = _listen(host)
        self._known: dict[socket.socket, _Rank] = {}
        self._lock = threading.Lock()
        self._closing, self._wake = socket.socketpair()
        self._callbacks: list[OnLoss] = []
        self.loss: str | None = None
        self._thread = threading.Thread(target=self._run, name="llmc-watch", daemon=True)
        self._thread.start()

    def subscribe(self, on_loss: OnLoss) -> None:
        """Call `on_loss` once with the reason when a rank is lost, at once if one was already."""
        with self._lock:
            self._callbacks.append(on_loss)
            loss = self.loss
        if loss is not None:
            on_loss(loss)

    def close(self) -> None:
        """Tell the ranks that the end of this process is in order."""
        self._wake.close()
        self._thread.join()

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._listener, selectors.EVENT_READ)
        selector.register(self._closing, selectors.EVENT_READ)
        beats, is_closing = _Beats(self._timeout), False
        while not is_closing and self.loss is None:
            for key, _ in selector.select(beats.seconds_left()):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is self._closing:
                    is_closing = True
                elif connection is self._listener:
                    self._accept(selector)
                elif (reason := self._receive(connection)) is not None:
                    self._lose(reason)
            if beats.is_due():
                self._beat()
        if is_closing:
            self._send_all(_GOODBYE)
        for connection in [self._listener, self._closing, *self._known]:
            connection.close()
        selector.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(1.0)
        try:
            hello = json.loads(_read_line(connection))
            if not is_ours(connection) or not secrets.compare_digest(hello["token"], self._token):
                raise ValueError("a stranger")
            rank = _Rank(hello["rank"], f"pid {hello['pid']} on {hello['host']}", time.monotonic())
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("watch of the ranks: refused a connection: %s", error)
            connection.close()
            return
        connection.setblocking(False)
        self._known[connection] = rank
        selector.register(connection, selectors.EVENT_READ)

    def _receive(self, connection: socket.socket) -> str | None:
        """Take what a rank sent; return why it is lost, or None."""
        rank = self._known[connection]
        try:
            data = connection.recv(65536)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        rank.last = time.monotonic()
        rank.received += data.replace(_BEAT, b"") if not rank.received else data
        if data:
            return None
        if rank.received.startswith(_FAILURE):
            return f"{rank} failed: {rank.received[1:].decode(errors='replace')}"
        return f"{rank} ended"

    def _beat(self) -> None:
        now = time.monotonic()
        self._send_all(_BEAT)
        for rank in self._known.values():
            if now - rank.last > self._timeout:
                self._lose(f"{rank} has not answered for {self._timeout:g} s")
        missing = sorted(set(self._ranks) - {rank.number for rank in self._known.values()})
        if missing and now > self._start_deadline:
            self._lose(f"rank {', '.join(map(str, missing))} did not start in time")

    def _send_all(self, data: bytes) -> None:
        for connection in self._known:
            # One that takes no more has been silent for long, and is about to be lost for that.
            with contextlib.suppress(OSError):
                connection.send(data)

    def _lose(self, reason: str) -> None:
        with self._lock:
            if self.loss is not None:
                return
            self.loss = reason
            callbacks = list(self._callbacks)
        log.error("%s; all ranks end", reason)
        for callback in callbacks:
            callback(reason)


class Report:
    """The side of a rank: connects, beats, and watches the watcher."""

    def __init__(self, address: str, *, rank: int, timeout_seconds: float, on_loss: OnLoss) -> None:
        """Call `on_loss` once, from another thread, when the scheduling process is gone.

        Raises: ServeError when nobody listens at `address`.
        """
        self._timeout, self._on_loss = timeout_seconds, on_loss
        try:
            self._socket, token = _connect(address)
            who = {"token": token, "rank": rank, "pid": os.getpid(), "host": socket.gethostname()}
            self._socket.sendall(json.dumps(who).encode() + b"\n")
        except OSError as error:
            raise ServeError(f"rank {rank}: nobody watches at {address}: {error}") from error
        self._failed = False
        threading.Thread(target=self._run, name="llmc-report", daemon=True).start()

    def fail(self, reason: str) -> None:
        """Say why this rank is about to end."""
        self._failed = True
        with contextlib.suppress(OSError):
            self._socket.sendall(_FAILURE + reason.encode())
            self._socket.shutdown(socket.SHUT_WR)

    def _run(self) -> None:
        last = time.monotonic()
        beats = _Beats(self._timeout)
        while not self._failed:
            self._socket.settimeout(beats.seconds_left())
            try:
                data = self._socket.recv(4096)
            except TimeoutError:
                data = None
            except OSError:
                data = b""
            now = time.monotonic()
            if data == b"":
                return self._on_loss("the process that schedules the ranks ended")
            if data is not None and _GOODBYE in data:
                return None
            if data is None and now - last > self._timeout:
                return self._on_loss(
                    f"the process that schedules the ranks has not answered for {self._timeout:g} s"
                )
            last = now if data is not None else last
            if beats.is_due():
                with contextlib.suppress(OSError):
                    self._socket.send(_BEAT)
        return None


class _Beats:
    """When the next beat is due: by the clock, for an answer to each beat would never end."""

    def __init__(self, timeout_seconds: float) -> None:
        self._pause = min(1.0, timeout_seconds / 5)
        self._next = time.monotonic()

    def seconds_left(self) -> float:
        """Return how long to wait for it, above 0: a socket with a timeout of 0 does not wait."""
        return max(self._next - time.monotonic(), 0.001)

    def is_due(self) -> bool:
        """Return whether it is due now, and then when the next one is."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._pause
        return True


def _listen(host: str | None) -> tuple[socket.socket, str, str]:
    """Return a listening socket, its address as text, and the secret that is part of it."""
    token = secrets.token_hex(16)
    if host is not None:
        listener = socket.create_server((host, 0))
        return listener, f"tcp:{host}:{listener.getsockname()[1]}:{token}", token
    # An abstract name: no file to leave behind; the kernel says whose process connects.
    name = f"llmc-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + name)
    listener.listen(64)
    return listener, f"unix:{name}:{token}", token


def _connect(address: str) -> tuple[socket.socket, str]:
    kind, _, rest = address.partition(":")
    place, _, token = rest.rpartition(":")
    if kind == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect("\0" + place)
        return connection, token
    host, _, port = place.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10), token


def is_ours(connection: socket.socket) -> bool:
    """Return whether a process of this user connected; over TCP the secret alone says so."""
    if connection.family != socket.AF_UNIX:
        return True
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    return bool(_PEER_CREDENTIALS.unpack(data)[1] == os.getuid())


def _read_line(connection: socket.socket) -> bytes:
    """Read byte by byte up to a line's end: what follows it are beats."""
    line = b""
    while not line.endswith(b"\n"):
        data = connection.recv(1)
        if not data or len(line) > 4096:
            raise ValueError("no name")
        line += data
    return line
