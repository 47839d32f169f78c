"""A server without TensorRT-LLM's backend, and one that starts its ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmc.errors import ServeError, ToolchainError
from llmc.model_repo.backends import require_backends
from llmc.model_repo.orchestrator import Orchestrator
from llmc.model_repo.ranks import choose_leader, find_ranked_models, require_ready
from llmc.model_repo.server import ServerConfig, job_command, job_environment
from llmc.model_repo.tritonserver import TritonServer
from tests.cli.run import llmc
from tests.model_repo.handmade import write_engine, write_repository
from tests.model_repo.served import needs_triton
from tests.runtime.tiny_tokenizers import byte_level, save


@pytest.fixture
def server(tmp_path: Path) -> TritonServer:
    """A server with the Python backend alone."""
    (tmp_path / "backends" / "python").mkdir(parents=True)
    return TritonServer(
        binary=Path("/opt/tritonserver/bin/tritonserver"),
        source="PATH",
        backend_dir=tmp_path / "backends",
        library_dirs=(),
    )


def set_version(root: Path, version: str) -> None:
    file = root / "engine" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": version}))


def test_a_missing_backend_is_said_with_the_container_that_has_it(
    tmp_path: Path, server: TritonServer
) -> None:
    repository = write_repository(tmp_path)
    set_version(tmp_path, "1.1.0")
    with pytest.raises(ToolchainError) as caught:
        require_backends(repository, server)
    assert caught.value.message == (
        "/opt/tritonserver/bin/tritonserver lacks a backend: tensorrt_llm needs tensorrtllm; it has"
        " python"
    )
    assert caught.value.hint.endswith("25.12-trtllm-python-py3")
    set_version(tmp_path, "1.2.1")
    with pytest.raises(ToolchainError) as caught:
        require_backends(repository, server)
    assert caught.value.hint.endswith("26.07-trtllm-python-py3")
    (tmp_path / "backends" / "tensorrtllm").mkdir()
    require_backends(repository, server)


@needs_triton
def test_llmc_serve_says_it_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = write_repository(tmp_path)
    set_version(tmp_path, "1.1.0")
    arguments: tuple[Any, ...] = ("--allow-ungated", "--cache", tmp_path / "cache")
    done = llmc("serve", repository, *arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 5
    errors = [line for line in done.stderr.splitlines() if line.startswith(("error", "hint"))]
    assert len(errors) == 2 and "tensorrt_llm needs tensorrtllm" in errors[0]
    assert "25.12-trtllm-python-py3" in errors[1]


def emitted(
    tmp_path: Path, tp: int, capsys: Any, monkeypatch: pytest.MonkeyPatch, *settings: str
) -> Path:
    """Emit the repository of an engine of TensorRT-LLM, by the command."""
    save(byte_level(), write_engine(tmp_path / "engine", tp=tp, version="1.1.0"))
    repository = tmp_path / "repository"
    flags = [word for setting in settings for word in ("--set", setting)]
    done = llmc(
        *("repo", "emit", "--from-engine", tmp_path / "engine", "-o", repository, *flags),
        capsys=capsys,
        monkeypatch=monkeypatch,
    )
    assert done.code == 0, done.stderr
    return repository


def test_ranks_are_those_of_the_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA's configuration has no place for the mode: the repository's manifest has."""
    repository = emitted(tmp_path, 4, capsys, monkeypatch)
    (model,) = find_ranked_models(repository)
    assert (model.world_size, model.launch_mode, model.target) == (4, "leader", "tensorrt-llm")
    assert choose_leader([model]) is model
    with pytest.raises(ServeError, match="0 GPUs here, its 4 ranks need 4"):
        require_ready([model], hostfile=None, num_gpus=0, leader=True)
    setting = "serve.launch_mode=orchestrator"
    repository = emitted(tmp_path / "started", 2, capsys, monkeypatch, setting)
    (model,) = find_ranked_models(repository)
    assert model.launch_mode == "orchestrator" and choose_leader([model]) is None
    require_ready([model], hostfile=None, num_gpus=2, leader=False)
    ids = "serve.tensorrt_llm.participant_ids=[[1, 2]]"
    repository = emitted(tmp_path / "given", 2, capsys, monkeypatch, setting, ids)
    with pytest.raises(ServeError, match="participant_ids 1,2: ranks that the model"):
        require_ready(find_ranked_models(repository), hostfile=None, num_gpus=2, leader=False)


def test_an_orchestrator_leaves_the_gpus_to_its_ranks(tmp_path: Path, server: TritonServer) -> None:
    config = ServerConfig(
        repository=tmp_path,
        host="127.0.0.1",
        http_port=1,
        grpc_port=2,
        metrics_port=None,
        ready_timeout_seconds=1,
        drain_seconds=1,
        orchestrator=Orchestrator(num_gpus=2),
    )
    command = job_command(server, config, shm_prefix="x")
    assert {
        *("--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"),
        *("--cuda-memory-pool-byte-size=0:0", "--cuda-memory-pool-byte-size=1:0"),
    } <= set(command)
    environment = job_environment(server, config)
    assert environment["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] == "1"
