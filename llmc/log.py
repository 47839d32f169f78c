"""Logging and progress as library code sees them; the CLI decides how they look."""

import logging
import sys
from typing import Protocol


class Progress(Protocol):
    """A bar that counts bytes (or another unit) of a known total."""

    def start(self, description: str, total: int) -> None: ...
    def advance(self, amount: int) -> None: ...
    def finish(self) -> None: ...


class NullProgress:
    """Shows nothing."""

    def start(self, description: str, total: int) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def finish(self) -> None:
        pass


def configure(level: str) -> None:
    """Send llmc's log to stderr at `level` (a logging level name); stdout stays for results."""
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format="%(levelname).1s %(name)s: %(message)s")
