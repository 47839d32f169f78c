"""The installed launcher, asked and used for real."""

import sys
from pathlib import Path

import pytest

from llmc.errors import ToolchainError
from llmc.model_repo.launchers import Launcher
from llmc.model_repo.mpi import check_mpi, find_launcher
from tests.runtime.test_comm import mpirun


def fake(directory: Path, script: str) -> Launcher:
    """Return a launcher that calls itself Open MPI 5 and runs `script`."""
    path = directory / "mpirun"
    version = 'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 5.0.1"; exit; fi'
    path.write_text(f"#!/bin/sh\n{version}\n{script}\n")
    path.chmod(0o755)
    return find_launcher(path)


@pytest.mark.mpi
def test_two_ranks_add_up() -> None:
    mpirun()
    found = check_mpi(find_launcher())
    assert found.found["ranks"] == 2
    assert found.found["library"].startswith(found.launcher.flags.libraries)
    assert set(found.found["allreduce_us"]) == {"4096", "65536"}


@pytest.mark.mpi
def test_a_launcher_of_another_mpi_is_found_out(tmp_path: Path) -> None:
    """Each rank sees only itself then."""
    mpirun()
    launcher = fake(tmp_path, f"exec {sys.executable} -m llmc.runtime.comm_check 2")
    other = Launcher(binary=launcher.binary, flavour="mpich")
    if find_launcher().flavour == "mpich":
        with pytest.raises(ToolchainError, match="it is Open MPI 5, but mpi4py loads MPICH"):
            check_mpi(launcher)
    else:
        with pytest.raises(ToolchainError, match="it is MPICH, but mpi4py loads Open MPI"):
            check_mpi(other)


def test_a_launcher_that_hangs_is_ended(tmp_path: Path) -> None:
    launcher = fake(tmp_path, "setsid sleep 600 & sleep 600")
    with pytest.raises(ToolchainError, match=r"2 ranks under .*/mpirun: no end after 0\.5 s"):
        check_mpi(launcher, timeout_seconds=0.5)


def test_a_launcher_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="nothing --version"):
        find_launcher(tmp_path / "nothing")
