"""The log of one server: kept on disk or passed on, its end and its errors remembered."""

import collections
import logging
import re
import threading
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)

NUM_TAIL_LINES = 20
NUM_ERRORS = 10
_ERROR = re.compile(r"^(E\d{4} \S+ \d+ \S+\] |error: |(?=terminate called ))")
"""How Triton begins a line that says what went wrong: level, date, time, thread and place.

A server that aborts says only what C++ says of the exception.
"""
_LOCK = "boost::interprocess::lock_exception"
_STARVED = (
    "its Python backend does that now and then when its processes get no core for long"
    " (triton-inference-server/server, issue 8882): run less beside it; --restart starts it again"
)


class ServerLog:
    """Reads a server's output in a thread of its own until it ends."""

    def __init__(self, stream: IO[str], file: Path | None) -> None:
        """Copy `stream` to `file`, or to llmc's own log at level debug."""
        self._stream = stream
        self._file = file
        self._tail: collections.deque[str] = collections.deque(maxlen=NUM_TAIL_LINES)
        self._errors: dict[str, None] = {}
        self._thread = threading.Thread(target=self._read, name="triton-log", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait a little for the rest of the output of a server that has ended."""
        self._thread.join(timeout=2.0)

    def explain(self) -> str:
        """Return the server's error messages, each once; without any, the end of its log."""
        lines = list(self._errors) or list(self._tail)
        lines += [_STARVED] if any(_LOCK in line for line in self._errors) else []
        where = f"the whole log is in {self._file}" if self._file else "--log-file keeps the log"
        return "\n".join([*lines, where])

    def _read(self) -> None:
        if self._file is None:
            for line in self._stream:
                self._remember(line.rstrip())
                log.debug("%s", line.rstrip())
            return
        with self._file.open("w", encoding="utf-8") as file:
            for line in self._stream:
                self._remember(line.rstrip())
                file.write(line)
                file.flush()

    def _remember(self, line: str) -> None:
        self._tail.append(line)
        match = _ERROR.match(line)
        if match is not None and len(self._errors) < NUM_ERRORS:
            # Triton quotes a message that spans lines and writes their ends as two characters.
            message = line[match.end() :].strip('"').replace("\\n", "\n").rstrip()
            self._errors[message] = None
