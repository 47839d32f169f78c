"""Both sides of the watch, over real sockets."""

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from llmc.errors import ServeError
from llmc.runtime.watch import Report, Watch

WAIT = 20.0


class Heard:
    """A callback that remembers what it was told."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self._event = threading.Event()

    def __call__(self, reason: str) -> None:
        self.reasons.append(reason)
        self._event.set()

    def wait(self, seconds: float = WAIT) -> str | None:
        return self.reasons[0] if self._event.wait(seconds) else None


def watch(timeout_seconds: float = WAIT, start_seconds: float = WAIT, **more: str) -> Watch:
    return Watch(range(1, 3), timeout_seconds=timeout_seconds, start_seconds=start_seconds, **more)


def say_hello(address: str, rank: int, token: str | None = None) -> socket.socket:
    """Connect as a rank that never beats by itself."""
    _, name, secret = address.split(":")
    connection = socket.socket(socket.AF_UNIX)
    connection.connect("\0" + name)
    who = {"token": token or secret, "rank": rank, "pid": 7, "host": "node"}
    connection.sendall(json.dumps(who).encode() + b"\n")
    return connection


@pytest.fixture
def heard() -> Iterator[Heard]:
    yield Heard()


@pytest.mark.parametrize("host", [None, "127.0.0.1"])
def test_beats_keep_both_sides_quiet_and_the_end_is_announced(
    heard: Heard, host: str | None
) -> None:
    hub = watch(0.5, host=host) if host else watch(0.5)
    hub.subscribe(heard)
    lead_lost = Heard()
    for rank in (1, 2):
        Report(hub.address, rank=rank, timeout_seconds=0.5, on_loss=lead_lost)
    assert heard.wait(2.0) is None and lead_lost.reasons == []
    hub.close()
    assert lead_lost.wait(1.0) is None and heard.reasons == []


def test_beats_are_not_answered(heard: Heard) -> None:
    """Two sides that answered each other would keep a core busy between them."""
    hub = watch(5.0)
    peer = say_hello(hub.address, 1)
    assert count_beats(peer, seconds=1.5) <= 2
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")
    listener.listen(1)
    name = listener.getsockname()[1:].decode()
    Report(f"unix:{name}:secret", rank=1, timeout_seconds=5.0, on_loss=heard)
    connection, _ = listener.accept()
    assert count_beats(connection, seconds=1.5) <= 2
    for end in (peer, connection, listener):
        end.close()
    hub.close()


def count_beats(connection: socket.socket, *, seconds: float) -> int:
    """Return how many beats come in `seconds`, each answered."""
    connection.settimeout(0.1)
    deadline, count = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            count += connection.recv(4096).count(b".")
            connection.sendall(b".")
    return count


def test_a_rank_that_ends_is_lost_at_once(heard: Heard) -> None:
    hub = watch()
    hub.subscribe(heard)
    others = Heard()
    Report(hub.address, rank=1, timeout_seconds=WAIT, on_loss=others)
    say_hello(hub.address, 2).close()
    assert heard.wait(5.0) == "rank 2 (pid 7 on node) ended" == hub.loss
    assert re.search("the process that schedules the ranks ended", others.wait(5.0) or "")
    late = Heard()
    hub.subscribe(late)
    assert late.reasons == heard.reasons, "who comes late is told, too"


def test_a_rank_that_is_silent_is_lost_in_time(heard: Heard) -> None:
    hub = watch(0.4)
    hub.subscribe(heard)
    with say_hello(hub.address, 1):
        assert heard.wait(5.0) == "rank 1 (pid 7 on node) has not answered for 0.4 s"


def test_a_rank_that_fails_says_why(heard: Heard) -> None:
    hub = watch()
    hub.subscribe(heard)
    Report(hub.address, rank=1, timeout_seconds=WAIT, on_loss=Heard()).fail("rank1: cut short…")
    assert re.fullmatch(r"rank 1 \(pid \d+ on \S+\) failed: rank1: cut short…", heard.wait() or "")


def test_ranks_that_never_come_are_named(heard: Heard) -> None:
    hub = watch(start_seconds=0.5)
    hub.subscribe(heard)
    with say_hello(hub.address, 1) as beating:
        beating.sendall(b"." * 10)
        assert heard.wait(5.0) == "rank 2 did not start in time"


def test_a_lead_that_falls_silent_is_lost_to_its_ranks(heard: Heard) -> None:
    name = "\0llmc-test-silent"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen(1)
        Report("unix:llmc-test-silent:t", rank=1, timeout_seconds=0.4, on_loss=heard)
        assert (heard.wait(5.0) or "").endswith("has not answered for 0.4 s")


def test_strangers_are_refused(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    hub = watch()
    hub.subscribe(heard)
    with say_hello(hub.address, 1, token="wrong") as stranger:
        assert stranger.recv(1) == b"", "hung up on"
    assert "refused a connection" in caplog.text
    assert heard.wait(0.5) is None
    hub.close()


def test_nobody_to_report_to() -> None:
    with pytest.raises(ServeError, match="rank 3: nobody watches at unix:nowhere:t"):
        Report("unix:nowhere:t", rank=3, timeout_seconds=1.0, on_loss=Heard())
