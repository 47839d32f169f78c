"""`llmc build` after its job has run on the GPU: the engine is taken over, measured and emitted."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llmc import artifacts
from llmc.builders.targets.tensorrt_llm.jobs import job_id
from llmc.gate.record import require_passed
from tests.builders.tiny_hf import write_model
from tests.cli.run import llmc
from tests.gate.built import write_text


@pytest.fixture
def build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path / "cache"))
    model = write_model(tmp_path / "model", num_hidden_layers=1, hidden_size=128)
    text = write_text(tmp_path / "prose.txt")
    settings = ("target.build=job", f'gate.texts=["{text}"]', "dtype=float16")
    flags = [word for setting in settings for word in ("--set", setting)]
    run = partial(llmc, "build", model, "-o", tmp_path / "out", "--target", "tensorrt-llm", *flags)
    return partial(run, "--json", capsys=capsys, monkeypatch=monkeypatch)


def stages(done: Any) -> list[tuple[str, bool]]:
    assert done.code == 0, done.stderr
    return [(one["stage"], one["cached"]) for one in json.loads(done.stdout)["stages"]]


def bring_engine(output: Path, *, job: str) -> Path:
    """Write what the job leaves on its machine, as far as llmc reads it."""
    engine = output / "engine"
    engine.mkdir()
    pretrained = json.loads((output / "checkpoint" / "config.json").read_text(encoding="utf-8"))
    config = {
        "version": "1.2.1",
        "pretrained_config": pretrained,
        "build_config": {"max_batch_size": 64, "plugin_config": {"use_paged_context_fmha": True}},
    }
    stamp = {"tensorrt_llm": "1.2.1", "gpu": "NVIDIA H100", "compute_capability": 90, "job": job}
    (engine / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (engine / "build.json").write_text(json.dumps(stamp), encoding="utf-8")
    (engine / "rank0.engine").write_bytes(b"plan")
    tokenizer = (output / "checkpoint" / "tokenizer.json").read_bytes()
    (engine / "tokenizer.json").write_bytes(tokenizer)
    return engine


def test_engine_of_the_job_is_taken_over(build: Any, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert stages(build()) == [("checkpoint", False), ("gpu_build", False)]
    engine = bring_engine(output, job=job_id(output / "gpu_build"))
    new = [("engine", False), ("gate", False), ("model_repo", False)]
    assert stages(build()) == [("checkpoint", True), ("gpu_build", True), *new]
    require_passed(engine)
    manifest = artifacts.read_manifest(engine)
    assert manifest.tools["tensorrt_llm"] == "1.2.1" and manifest.tools["gpu"] == "NVIDIA H100"
    assert "rank0.engine" in manifest.files
    assert (output / "model_repo" / "tensorrt_llm" / "config.pbtxt").is_file()
    assert all(is_cached for _, is_cached in stages(build()))
    (engine / "rank0.engine").write_bytes(b"PLAN")
    done = build()
    assert done.code == 3 and "not as the job built it" in done.stderr


def test_engine_of_another_job_is_left(build: Any, tmp_path: Path) -> None:
    build()
    engine = bring_engine(tmp_path / "out", job="0" * 64)
    done = build()
    assert stages(done) == [("checkpoint", True), ("gpu_build", True)]
    assert "built by another job" in done.stderr
    assert not (engine / artifacts.MANIFEST_NAME).exists()
    (engine / "build.json").write_text("{", encoding="utf-8")
    done = build()
    assert done.code == 3 and "expected what built the engine" in done.stderr
