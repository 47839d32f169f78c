"""`llmc doctor` says what is here and, for what is not, the command that brings it."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from llmc.cli import doctor
from llmc.errors import ToolchainError
from llmc.model_repo.launchers import Launcher
from llmc.targets import TARGETS
from tests.cli.run import Done, llmc
from tests.runtime.test_comm import mpirun, second_mpirun

Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path))
    return partial(llmc, capsys=capsys, monkeypatch=monkeypatch)


def test_json_has_what_a_report_of_a_bug_needs(run: Run) -> None:
    done = run("doctor", "--json")
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["machine"]["python"].startswith("3.")
    assert found["packages"]["numpy"]
    assert found["cpu"]["logical_cores"] >= 1
    assert found["cpu"]["kernels"] or found["cpu"]["kernels_problem"]
    for target in TARGETS:
        assert any(task.startswith(f"target {target}:") for task in found["tasks"])


def test_table_has_a_verdict_for_every_task(run: Run) -> None:
    done = run("doctor")
    assert done.code == 0, done.stderr
    for text in ("machine", "kernels", "packages", "serve with Triton"):
        assert text in done.stdout


def test_missing_things_come_with_their_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = {
        "gpu": {"gpus": []},
        "packages": {"tensorrt-llm": None},
        "cpu": {"kernels": None, "kernels_problem": "no library"},
        "mpi": {"launcher": None, "problem": "no MPI launcher", "fix": "pip install MPI"},
        "triton": {"tritonserver": None, "problem": "no tritonserver", "fix": "pip install it"},
    }
    tasks = doctor._tasks(found)
    fixes = {item["what"]: item["fix"] for missing in tasks.values() for item in missing}
    assert fixes.keys() == {
        *("gguf is not installed", "mpi4py is not installed"),
        *("tensorrt_rtx_bindings is not installed", "tensorrt is not installed", "no NVIDIA GPU"),
        *("no library", "no MPI launcher", "no tritonserver"),
        *("TensorRT-LLM is not installed", "no GPU"),
    }
    elsewhere = [what for what, fix in fixes.items() if "pip install" not in fix]
    assert elsewhere == ["TensorRT-LLM is not installed", "no GPU"]
    assert doctor._verdict(tasks["import a GGUF file"]) == (
        "gguf is not installed — pip install 'llmc[gguf]'"
    )


def test_broken_kernels_are_a_finding_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise ToolchainError("libllmc_cpu.so: not found")

    monkeypatch.setattr("llmc.plugins.native.choose_instruction_set", broken)
    assert doctor._cpu()["kernels"] is None
    assert doctor._cpu()["kernels_problem"] == "libllmc_cpu.so: not found"


@pytest.mark.mpi
def test_another_mpi_adds_up_when_it_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = second_mpirun(monkeypatch)
    done = run("doctor", "mpi", "--launcher", str(launcher), "--json")
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["launcher"] == f"{launcher} (Open MPI 5)"
    assert found["library"].startswith("Open MPI 5.")


@pytest.mark.mpi
def test_mpi_adds_up_on_two_ranks(run: Run) -> None:
    mpirun()
    done = run("doctor", "mpi")
    assert done.code == 0, done.stderr
    for text in ("launcher", "library", "-n 2", "4096 bytes", "µs"):
        assert text in done.stdout


def test_mpi_that_does_not_work_says_why(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(explicit: Path | None) -> Launcher:
        raise ToolchainError("no MPI launcher", hint="pip install it")

    monkeypatch.setattr("llmc.model_repo.mpi.find_launcher", nothing)
    done = run("doctor", "mpi")
    assert (done.code, done.stdout) == (5, "")
    assert "error: no MPI launcher" in done.stderr and "pip install it" in done.stderr


def test_command_that_is_not_there_is_no_error() -> None:
    assert doctor._run("no-such-command-anywhere") is None
    assert doctor._run("false") is None
