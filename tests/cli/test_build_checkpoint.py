"""`llmc build` for TensorRT-LLM 1.3: a Hugging Face checkpoint, measured here, served elsewhere."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from llmc.gate.record import require_passed
from llmc.runtime.engine import KvCacheConfig, NotRunnableHereError, load_engine
from tests.builders.tiny_hf import flip_weight_byte, write_model
from tests.cli.run import Done, llmc
from tests.gate.built import write_text

Run = Callable[..., Done]
FLAGS = ("--target", "tensorrt-llm", "--set", "target.version=1.3", "--tp", 2, "--quant", "W8A16")


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return partial(llmc, capsys=capsys, monkeypatch=monkeypatch)


def test_checkpoint_is_measured_inspected_and_refused_by_llmcs_own_runtime(
    run: Run, tmp_path: Path
) -> None:
    model, output = write_model(tmp_path / "model"), tmp_path / "out"
    text = write_text(tmp_path / "prose.txt")
    build = partial(run, "build", model, "-o", output, *FLAGS, "--set", f'gate.texts=["{text}"]')
    done = build()
    assert done.code == 0, done.stderr
    stages = [line.split()[0] for line in done.stdout.splitlines()]
    assert stages == ["checkpoint", "engine", "gate", "model_repo"]
    assert "measured on the CPU, from the same checkpoint" in done.stderr
    assert f"trtllm-serve {output}/engine --tp_size 2 --pp_size 1" in done.stderr
    gate = require_passed(output / "engine")
    assert gate.measurement.quant_algo == "W8A16"
    divergence = gate.measurement.texts[0].divergence
    assert divergence is not None and 1e-7 < divergence.mean_kl < 1e-2
    settings = (output / "model_repo" / "tensorrt_llm" / "1" / "model.yaml").read_text()
    assert f"model: {output}/engine\n" in settings and "tensor_parallel_size: 2\n" in settings
    assert {path.name for path in (output / "gate").iterdir()} == {
        *("measurement.json", "manifest.json", "report.md", "kl-by-position.svg"),
    }

    done = run("inspect", output / "engine", "--json")
    facts = json.loads(done.stdout)
    assert facts["kind"] == "Hugging Face checkpoint" and facts["damage"] == []
    assert facts["quantization"]["quant_algo"] == "W8A16"
    assert facts["tensor_bytes"]["int8"] == 2 * (64 * (64 + 2 * 32 + 64) + 3 * 64 * 96)

    with pytest.raises(NotRunnableHereError, match="its own backend runs and llmc's does not"):
        load_engine(output / "engine", kv=KvCacheConfig(max_tokens=128))

    done = build()
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["cached"] * 4

    # The engine stays; what it was written from is another model's now.
    flip_weight_byte(model)
    done = run("build", model, "-o", output, *FLAGS, "--until", "checkpoint")
    assert done.code == 0, done.stderr
    done = run("verify", output)
    assert done.code == 3 and "made from another checkpoint" in done.stderr
