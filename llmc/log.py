"""Logging and progress as library code sees them; the CLI decides how they look."""

import logging
import sys
from typing import Protocol, TextIO


class Progress(Protocol):
    """A bar that counts bytes, or things of another unit, of a known total."""

    def start(self, description: str, total: int, unit: str = "bytes") -> None: ...
    def advance(self, amount: int) -> None: ...
    def finish(self) -> None: ...


class NullProgress:
    """Shows nothing."""

    def start(self, description: str, total: int, unit: str = "bytes") -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def finish(self) -> None:
        pass


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever sys.stderr is now: a progress bar replaces it while it is drawn."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def configure(level: str) -> None:
    """Send llmc's log to stderr at `level` (a logging level name); stdout stays for results.

    May be called again to change the level. Other packages log from WARNING up.
    """
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(levelname).1s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("llmc").setLevel(level.upper())
