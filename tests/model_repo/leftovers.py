"""What the processes of a server own; nothing of it may be left when the server has ended.

Only what they had is looked at: other servers may run on the machine.
"""

import contextlib
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from llmc.model_repo.model_processes import is_alive

SHM = Path("/dev/shm")
SYSV = Path("/proc/sysvipc/shm")


@dataclass(slots=True, kw_only=True)
class Owned:
    """Processes, and the names of shared memory that they had mapped."""

    processes: set[psutil.Process] = field(default_factory=set)
    memory: set[str] = field(default_factory=set)

    def look(self, pid: int) -> None:
        """Add what `pid` and its descendants have now."""
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
        self.processes.update(family)
        for process in family:
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                self.memory |= set(re.findall(r"/dev/shm/(\S+)$", maps, re.MULTILINE))

    def left(self) -> list[str]:
        """Return everything that is still there."""
        pids = {process.pid for process in self.processes}
        segments = [line.split() for line in SYSV.read_text().splitlines()[1:]]
        return [
            *(f"process {process}" for process in self.processes if is_alive(process)),
            *(f"{SHM}/{name}" for name in sorted(self.memory & set(os.listdir(SHM)))),
            # Columns: key, id, permissions, size, creator's pid, ...
            *(f"SysV {line[1]} of {line[4]}" for line in segments if int(line[4]) in pids),
        ]

    def require_nothing_left(self, seconds: float = 20.0) -> None:
        """Raise AssertionError with what is left after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.left() == []
