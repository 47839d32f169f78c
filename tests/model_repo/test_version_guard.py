"""Engines of TensorRT-LLM are compared with the machine before anything is started."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from llmc.errors import ServeError
from llmc.model_repo import version_guard
from llmc.model_repo.engine_config import read_engine
from llmc.model_repo.version_guard import Found, doubts, mismatches, require_fitting
from llmc.nvidia import HostGpu
from tests.model_repo.handmade import write_engine, write_repository

H100 = HostGpu(name="NVIDIA H100", capability=90, memory_gib=80.0, driver="580.95.05")
OLD_DRIVER = HostGpu(name="NVIDIA H100", capability=90, memory_gib=80.0, driver="570.86.10")
STAMP = {
    "tensorrt_llm": "1.1.0",
    "tensorrt": "10.13.3.9",
    "gpu": "NVIDIA H100",
    "compute_capability": 90,
}

OTHER_LINE = "engine: built by TensorRT-LLM 1.1.0, the one of Triton's container 25.08 is 0.21.0"


def found(version: str | None = "1.1.0", **changes: Any) -> Found:
    fields: dict[str, Any] = {
        "tensorrt_llm": version,
        "told_by": "the one installed",
        "tensorrt": None,
        "gpus": (H100,),
    }
    return Found(**(fields | changes))


@pytest.mark.parametrize(
    ("here", "refused", "doubted"),
    [
        (found(), [], []),
        (found(tensorrt="10.13.3.9", gpus=(H100, H100)), [], []),
        (
            found("0.21.0", told_by="the one of Triton's container 25.08"),
            [OTHER_LINE],
            [OTHER_LINE],
        ),
        (found("1.1.1"), [], ["engine: built by TensorRT-LLM 1.1.0, the one installed is 1.1.1"]),
        (
            found(tensorrt="10.11.0.33"),
            ["engine: built by TensorRT 10.13.3.9, installed is 10.11.0.33"],
            [],
        ),
        (found(gpus=()), ["no GPU: nvidia-smi lists none"], []),
        (
            found(gpus=(HostGpu(name="L4", capability=89, memory_gib=22.5, driver="580.95.05"),)),
            ["engine: built for compute capability 90, L4 has 89"],
            [],
        ),
        (
            found(gpus=(OLD_DRIVER, OLD_DRIVER)),
            [],
            ["driver 570.86.10: TensorRT-LLM 1.1.0 is released with 580.95.05; an older one"],
        ),
        (found(None), [], ["engine: built by TensorRT-LLM 1.1.0; which one is here nothing says"]),
    ],
)
def test_what_does_not_fit_is_a_line(
    tmp_path: Path, here: Found, refused: list[str], doubted: list[str]
) -> None:
    directory = write_engine(tmp_path / "engine", version="1.1.0")
    (directory / "build.json").write_text(json.dumps(STAMP), encoding="utf-8")
    engine = read_engine(directory)
    assert mismatches(engine, here) == refused
    told = doubts(engine, here)
    assert len(told) == len(doubted)
    assert all(text.startswith(start) for text, start in zip(told, doubted, strict=True))


def test_without_a_stamp_the_version_is_compared(tmp_path: Path) -> None:
    engine = read_engine(write_engine(tmp_path / "engine", version="1.0.0"))
    assert mismatches(engine, found(tensorrt="10.13.3.9")) == [
        "engine: built by TensorRT-LLM 1.0.0, the one installed is 1.1.0"
    ]


@pytest.mark.parametrize(
    ("version", "hint"),
    [
        ("0.21.0", "nvcr.io/nvidia/tritonserver:25.08-trtllm-python-py3"),
        ("1.1.0", "nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3"),
        ("1.2.1", "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"),
        ("0.9.0", "no container of Triton is known to have TensorRT-LLM 0.9"),
    ],
)
def test_the_container_that_fits_is_named(version: str, hint: str) -> None:
    assert hint in version_guard.container_hint(version)


def test_a_container_says_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_guard, "installed_version", lambda: None)
    monkeypatch.setattr(version_guard, "find_gpus", lambda: (H100,))
    monkeypatch.setenv("NVIDIA_TRITON_SERVER_VERSION", "25.10")
    here = version_guard.look_around()
    assert (here.tensorrt_llm, here.told_by) == ("1.0.0", "the one of Triton's container 25.10")
    monkeypatch.setenv("NVIDIA_TRITON_SERVER_VERSION", "30.01")
    assert version_guard.look_around().tensorrt_llm is None


def test_a_repository_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    repository = write_repository(tmp_path)
    monkeypatch.setattr(version_guard, "look_around", lambda: found("1.0.0", gpus=()))
    with pytest.raises(ServeError) as caught:
        require_fitting(repository)
    lines = caught.value.message.splitlines()
    assert "its engines cannot be loaded here" in lines[0]
    assert lines[-1] == "  - no GPU: nvidia-smi lists none"
    assert caught.value.hint
    version = read_engine(tmp_path / "engine").version_text
    monkeypatch.setattr(version_guard, "look_around", lambda: found(version, gpus=(OLD_DRIVER,)))
    with caplog.at_level(logging.WARNING):
        require_fitting(repository)


def test_repositories_of_llmcs_own_engines_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_guard, "look_around", lambda: pytest.fail("looked"))
    require_fitting(tmp_path)
