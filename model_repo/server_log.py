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
_ERROR = re.compile(r"^(E\d{4} \S+ \d+ \S+\] |error: )")
"""How Triton begins a line that says what went wrong: level, date, time, thread and place."""


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
