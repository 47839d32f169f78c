"""The guard leaves nothing behind, whatever ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from llmc.model_repo.mpi import guarded

# A grandchild in a session of its own, an orphan in another, shared memory that all have mapped.
PROGRAM = """
import mmap, os, subprocess, sys, time
path = sys.argv[1]
with open(path, "w+b") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleep, start_new_session=True)
subprocess.run(["setsid", "-f", *sleep], check=True)
print("started", flush=True)
time.sleep({seconds})
sys.exit(7)
"""


def start(shm: Path, *, seconds: float = 600) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM.replace("{seconds}", str(seconds)), str(shm)]
    process = subprocess.Popen(
        guarded(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


@pytest.mark.parametrize("end", ["by itself", "stdin", "signal"])
def test_nothing_is_left(end: str) -> None:
    shm = Path(f"/dev/shm/llmc-test-{os.getpid()}-{end.replace(' ', '-')}")
    process = start(shm, seconds=2.0 if end == "by itself" else 600)
    assert process.stdin is not None and process.stdout is not None
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) == 3 and shm.exists()
    if end == "stdin":
        process.stdin.close()
    elif end == "signal":
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == (7 if end == "by itself" else 128 + signal.SIGKILL)
    assert not any(child.is_running() for child in family)
    assert not shm.exists()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.stdout.close()


def test_who_started_it_may_be_killed(tmp_path: Path) -> None:
    """The pipe to a process that is gone says so, whatever signal ended it."""
    program = (
        "import subprocess, sys, time\n"
        "from llmc.model_repo.mpi import guarded\n"
        "p = subprocess.Popen(guarded(['sleep', '600']), stdin=subprocess.PIPE)\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    guard = psutil.Process(int(parent.stdout.readline()))
    deadline = time.monotonic() + 20
    while not guard.children() and time.monotonic() < deadline:
        time.sleep(0.02)
    (sleeper,) = guard.children()
    parent.kill()
    parent.communicate()
    psutil.wait_procs([guard, sleeper], timeout=20)
    assert not sleeper.is_running() or sleeper.status() == psutil.STATUS_ZOMBIE


def test_older_shared_memory_is_somebody_elses() -> None:
    path = Path(f"/dev/shm/llmc-test-{os.getpid()}-older")
    path.write_bytes(bytes(4096))
    try:
        time.sleep(1.2)
        program = (
            "import mmap, sys, time\n"
            "file = open(sys.argv[1], 'r+b')\n"
            "memory = mmap.mmap(file.fileno(), 4096)\n"
            "time.sleep(0.2)"
        )
        command = guarded([sys.executable, "-c", program, str(path)])
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            assert process.wait(timeout=20) == 0
        assert path.exists()
    finally:
        path.unlink()


def test_a_command_that_is_not_there_is_named() -> None:
    with subprocess.Popen(
        guarded(["/no/such/command"]),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.wait(timeout=20) == 127
        assert process.stderr is not None
        assert process.stderr.read() == "error: /no/such/command: No such file or directory\n"
