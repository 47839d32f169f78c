import importlib.util
import os
import stat
import sys
from pathlib import Path

import pytest

import llmc
from llmc.errors import ToolchainError
from llmc.model_repo import tritonserver
from llmc.model_repo.tritonserver import STUB, find_libpython, find_tritonserver


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Files laid out as in the nvidia-pytriton wheel; returns the server's root."""
    root = tmp_path / "site-packages" / "pytriton" / "tritonserver"
    executable(root / "bin" / "tritonserver")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    executable(root / "python_backend_stubs" / version / STUB)
    for name in tritonserver.BACKEND_FILES:
        executable(root / "backends" / "python" / name)
    (tmp_path / "site-packages" / "nvidia_pytriton.libs").mkdir()
    return root


def test_the_flag_wins_and_must_name_a_program(tmp_path: Path) -> None:
    binary = executable(tmp_path / "opt" / "bin" / "tritonserver")
    found = find_tritonserver(binary, cache=tmp_path / "cache")
    assert (found.binary, found.backend_dir) == (binary, None), "it brings its own backends"
    binary.chmod(0o644)
    with pytest.raises(ToolchainError, match="is no executable file"):
        find_tritonserver(binary, cache=tmp_path / "cache")


def test_path_comes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = executable(tmp_path / "bin" / "tritonserver")
    monkeypatch.setenv("PATH", str(binary.parent))
    found = find_tritonserver(None, cache=tmp_path / "cache")
    assert (found.binary, found.source) == (binary, "PATH")


def test_the_wheel_gets_its_stub_and_libraries_without_being_written(
    wheel: Path, tmp_path: Path
) -> None:
    before = sorted(wheel.rglob("*"))
    found = find_tritonserver(wheel / "bin" / "tritonserver", cache=tmp_path / "cache")
    again = find_tritonserver(wheel / "bin" / "tritonserver", cache=tmp_path / "cache")
    assert found == again and sorted(wheel.rglob("*")) == before
    assert found.backend_dir is not None
    backend = found.backend_dir / "python"
    assert {path.name for path in backend.iterdir()} == {*tritonserver.BACKEND_FILES, STUB, "llmc"}
    assert all(path.resolve().exists() for path in backend.iterdir())
    assert (backend / "llmc").resolve() == Path(llmc.__file__).parent
    environment = found.environment()
    libraries = environment["LD_LIBRARY_PATH"].split(os.pathsep)
    assert libraries[0].endswith("nvidia_pytriton.libs")
    assert (Path(libraries[1]) / find_libpython().name).exists()
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_a_wheel_without_a_stub_for_this_python_says_which_it_has(
    wheel: Path, tmp_path: Path
) -> None:
    stubs = wheel / "python_backend_stubs"
    next(stubs.iterdir()).rename(stubs / "3.7")
    with pytest.raises(ToolchainError, match=r"no stub for Python 3\.\d+, only for 3\.7"):
        find_tritonserver(wheel / "bin" / "tritonserver", cache=tmp_path)


def test_nothing_found_names_the_command_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match="no tritonserver") as error:
        find_tritonserver(None, cache=tmp_path)
    assert "pip install 'llmc[triton]'" in error.value.hint
