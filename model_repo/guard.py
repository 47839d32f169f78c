"""Run one command; when it, or whoever started this, ends, nothing that it started is left.

    python -I -S guard.py COMMAND [ARGUMENT...]

A program of its own, on the standard library alone. MPI's launchers put every rank into a session
of its own and a killed parent kills nobody, so neither a process group nor a chain of parents finds
them all: orphans of this process's descendants become its children (a subreaper), and shared memory
that any of them had mapped is remembered. It ends everything when its standard input reaches its
end, which is what happens when the process that holds the other end is killed. Its exit code is the
command's, 128 + the signal for a command that was killed.

Source: prctl(2), PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SHM = "/dev/shm/"
LOOK_SECONDS = 0.5
"""How often the mapped shared memory is looked at: a killed process can no longer be asked."""


def main(command: list[str]) -> int:
    """Run `command` until it ends, stdin ends, or a signal says so; return the exit code."""
    started = time.time()
    wake, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    ended: list[int] = []
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: ended.append(number))
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = _start(command)
    mapped: set[str] = set()
    status: int | None = None
    try:
        while status is None and not ended:
            readable, _, _ = select.select([0, wake], [], [], LOOK_SECONDS)
            if 0 in readable and not os.read(0, 4096):
                break
            if wake in readable:
                os.read(wake, 4096)
            mapped |= _mapped(_descendants(os.getpid()))
            status = _reap().get(child)
    finally:
        status = _end_all(mapped, child, status)
        _unlink(mapped, newer_than=started)
    return os.waitstatus_to_exitcode(status) % 256 if os.WIFEXITED(status) else _killed(status)


def _start(command: list[str]) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"error: {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _end_all(mapped: set[str], child: int, status: int | None) -> int:
    """Kill until nobody is left: a process may start another while it is being killed."""
    while True:
        left = _descendants(os.getpid())
        mapped |= _mapped(left)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        found = _reap().get(child)
        status = found if found is not None else status
        if not left:
            return status if status is not None else signal.SIGKILL
        time.sleep(0.01)


def _reap() -> dict[int, int]:
    """Return the wait status of each child that has ended, adopted ones included."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                # The command in parentheses may hold anything; the parent is second after it.
                fields = file.read().rpartition(")")[2].split()
                if fields[0] != "Z" or int(fields[1]) == root:
                    children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _mapped(pids: list[int]) -> set[str]:
    """Return the files in shared memory that any of `pids` has mapped."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as file:
            found |= {line[line.index(SHM) :].rstrip() for line in file if SHM in line}
    return {path for path in found if not path.endswith(" (deleted)")}


def _unlink(paths: set[str], *, newer_than: float) -> None:
    """Remove what this user's processes made since; older files belong to somebody else."""
    for path in paths:
        with contextlib.suppress(OSError):
            found = os.stat(path)
            if found.st_uid == os.getuid() and found.st_ctime >= newer_than - 1:
                os.unlink(path)


def _killed(status: int) -> int:
    return 128 + os.WTERMSIG(status)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
