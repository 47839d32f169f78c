"""How results and progress look: tables and JSON on stdout, progress and notes on stderr."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text


class ConsoleProgress:
    """An `llmc.log.Progress` on stderr: a bar with amount and ETA, or one line when not a terminal.

    As a context manager it also takes the bar away when work ends in an exception.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._description = ""
        self._total = 0
        self._unit = "bytes"
        self._started = 0.0

    def __enter__(self) -> "ConsoleProgress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_bar()

    def start(self, description: str, total: int, unit: str = "bytes") -> None:
        self._stop_bar()
        self._description, self._total, self._unit = description, total, unit
        self._started = time.monotonic()
        if self._console.is_terminal:
            amount = (DownloadColumn(binary_units=True), TransferSpeedColumn())
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                *(amount if unit == "bytes" else (MofNCompleteColumn(), TextColumn(unit))),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.add_task(description, total=total)
            self._bar.start()

    def advance(self, amount: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], amount)

    def finish(self) -> None:
        self._stop_bar()
        seconds = time.monotonic() - self._started
        total = self._total
        amount = format_bytes(total) if self._unit == "bytes" else f"{total} {self._unit}"
        note(f"{self._description}: {amount} in {seconds:.1f} s")

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def format_bytes(num_bytes: int) -> str:
    """Return a size with one decimal in the largest binary unit that keeps it at 1 or more."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{num_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def note(text: str) -> None:
    """Tell the person at the terminal something that is not the result."""
    print(text, file=sys.stderr)


def print_json(value: Any) -> None:
    """Print the result for machines."""
    print(json.dumps(value, indent=2))


def print_section(title: str, rows: Mapping[str, object] | Sequence[tuple[str, object]]) -> None:
    """Print a heading and its rows of name and value."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2), pad_edge=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items() if isinstance(rows, Mapping) else rows:
        table.add_row(Text(name), Text(_words(value)))
    console = Console()
    console.print(Text(title, style="bold"))
    console.print(table)


def _words(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_words, value)) or "none"
    return str(value)
