"""`llmc repo emit` on an engine directory that llmc did not build."""

from pathlib import Path

import pytest

from llmc.artifacts import read_manifest
from llmc.model_repo.pbtxt import read_config
from tests.cli.run import llmc
from tests.model_repo.handmade import write_engine
from tests.runtime.tiny_tokenizers import byte_level, save


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_engine(tmp_path / "engine", tp=2, version="1.0.0")
    save(byte_level(), tmp_path / "tokenizer")
    return tmp_path


def test_it_writes_what_lint_finds_nothing_in(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = root / "serve.yaml"
    recipe.write_text("model: m\nserve: {launch_mode: orchestrator, max_queue_size: 9}\n")
    repository = root / "repository"
    command = ("repo", "emit", "--from-engine", root / "engine", "-o", repository)
    more = ("--tokenizer", root / "tokenizer", "--recipe", recipe)
    setting = ("--set", "serve.tensorrt_llm.gpu_device_ids=[[2, 3]]")
    done = llmc(*command, *more, *setting, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5
    config = read_config(repository / "tensorrt_llm" / "config.pbtxt")
    assert config.parameters["gpu_device_ids"].string_value == "2,3"
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 9
    assert read_manifest(repository).recipe["launch_mode"] == "orchestrator"
    done = llmc("repo", "lint", repository, capsys=capsys, monkeypatch=monkeypatch)
    assert (done.code, done.stdout) == (0, "nothing found\n")
    # A second time replaces the first; a setting that does not fit leaves it as it was.
    assert llmc(*command, *more, capsys=capsys, monkeypatch=monkeypatch).code == 0
    setting = ("--set", "serve.max_batch_size=1000")
    done = llmc(*command, *more, *setting, capsys=capsys, monkeypatch=monkeypatch)
    assert (done.code, "more than the engine's 64" in done.stderr) == (4, True)
    assert (repository / "tensorrt_llm" / "config.pbtxt").is_file()


def test_what_is_no_engine_is_said(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("repo", "emit", "--from-engine", root / "tokenizer", "-o", root / "repository")
    done = llmc(*command, capsys=capsys, monkeypatch=monkeypatch)
    assert (done.code, "config.json: not found" in done.stderr) == (3, True)
    assert not (root / "repository").exists()
