"""The gate on the command line: `build` stops at a bad engine, `verify` measures one again."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from llmc.gate import report
from llmc.gate.record import Gate, read_gate, require_passed
from tests.builders.tiny_hf import flip_weight_byte, write_model
from tests.cli.run import Done, llmc
from tests.gate.built import scale_engine, write_text

Run = Callable[..., Done]

IMPOSSIBLE = ("--set", "gate.max_kl=0")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("LLMC_LOG", "warning")
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path / "cache"))
    return partial(llmc, capsys=capsys, monkeypatch=monkeypatch)


@pytest.fixture
def build(run: Run, tmp_path: Path) -> Callable[..., Done]:
    """Build a tiny model as W8A16 into tmp_path/out, measured on two texts it knows."""
    model = write_model(tmp_path / "model")
    texts = [write_text(tmp_path / f"{name}.txt", seed=len(name)) for name in ("prose", "code")]
    recipe = tmp_path / "recipe.yaml"
    names = ", ".join(path.name for path in texts)
    recipe.write_text(f"model: {model.name}\ngate: {{texts: [{names}]}}\n")
    return partial(run, "build", recipe, "-o", tmp_path / "out", "--quant", "W8A16")


def entries(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_failed_engine_is_kept_aside_and_no_repository_emitted(
    build: Callable[..., Done], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    done = build(*IMPOSSIBLE)
    assert (done.code, done.stdout) == (8, "")
    assert f"error: {output}/engine.failed: failed the quality gate" in done.stderr
    assert "prose: mean_kl" in done.stderr and "code: mean_kl" in done.stderr
    assert "hint:" in done.stderr and "gate/report.md" in done.stderr
    assert entries(output) == ["checkpoint", "engine.failed", "gate", "recipe.yaml"]
    gate = read_gate(output / "engine.failed")
    assert gate is not None and gate.verdict == "failed"
    as_json = build(*IMPOSSIBLE, "--json")
    assert as_json.code == 8 and "error:" in as_json.stderr
    told = json.loads(as_json.stdout)["gate"]
    assert told["verdict"] == "failed"
    assert [check["metric"] for check in told["checks"] if not check["passed"]] == ["mean_kl"] * 2
    # Other thresholds take the engine back; neither it nor its measurement is made again.
    done = build()
    assert done.code == 0, done.stderr
    states = [line.endswith("  cached") for line in done.stdout.splitlines()]
    assert states == [True, True, True, False]
    assert entries(output) == ["checkpoint", "engine", "gate", "model_repo", "recipe.yaml"]
    assert require_passed(output / "engine").verdict == "passed"


def test_a_reader_may_insist(build: Callable[..., Done], tmp_path: Path) -> None:
    done = build(*IMPOSSIBLE, "--allow-ungated")
    assert done.code == 0 and "failed the quality gate" in done.stderr
    assert "model_repo" in entries(tmp_path / "out") and "engine" in entries(tmp_path / "out")


def test_unmeasured_engine_is_not_emitted(build: Callable[..., Done], tmp_path: Path) -> None:
    done = build("--set", "gate.enabled=false")
    assert done.code == 2 and "--until engine" in done.stderr
    assert not (tmp_path / "out").exists()
    assert build("--set", "gate.enabled=false", "--allow-ungated").code == 0
    assert not (tmp_path / "out" / "gate").exists()


def test_only_the_gated_engine_is_emitted(
    build: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that changes between its gate and the emission stops the build."""
    summarize = report.summarize

    def meddling(gate: Gate) -> Iterator[str]:
        engine = tmp_path / "out" / "engine" / "rank0.engine"
        engine.write_bytes(engine.read_bytes() + b" ")
        return summarize(gate)

    monkeypatch.setattr(report, "summarize", meddling)
    done = build()
    assert done.code == 8 and "not the engine that was gated" in done.stderr


def test_serve_refuses_what_failed_or_was_never_measured(
    build: Callable[..., Done], run: Run, tmp_path: Path
) -> None:
    """Refusals come before a server is looked for, so none is needed here."""
    output = tmp_path / "out"
    serve = ("serve", output / "model_repo", "--tritonserver", "/nonexistent")
    assert build("--set", "gate.enabled=false", "--allow-ungated").code == 0
    done = run(*serve)
    assert done.code == 8 and "never passed the quality gate" in done.stderr
    done = run(*serve, "--allow-ungated")
    assert done.code == 5 and "never passed the quality gate" in done.stderr
    assert build().code == 0
    assert run(*serve).code == 5
    scale_engine(output / "engine", "layers.0.mlp.proj", 8.0)
    done = run(*serve)
    assert done.code == 8 and "not the engine that was gated" in done.stderr
    assert run("verify", output).code == 8
    done = run(*serve)
    assert done.code == 8 and "prose: mean_kl" in done.stderr
    assert build(*IMPOSSIBLE).code == 8
    done = run(*serve)
    assert done.code == 8 and "engine.failed" in done.stderr


def test_verify_repeats_the_verdict_of_the_build(
    build: Callable[..., Done], run: Run, tmp_path: Path
) -> None:
    build()
    output = tmp_path / "out"
    done = run("verify", output)
    assert done.code == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["prose", "code", "passed"]
    assert done.stdout.endswith("report.md  cached\n")
    assert "cached" not in run("verify", output, "--force").stdout
    done = run("verify", output, *IMPOSSIBLE)
    assert done.code == 8 and "error:" in done.stderr and "failed:" in done.stdout
    assert read_gate(output / "engine") is not None


def test_verify_measures_on_other_texts(
    build: Callable[..., Done], run: Run, tmp_path: Path
) -> None:
    build()
    mine = write_text(tmp_path / "mine.txt", seed=5, num_words=40)
    done = run("verify", tmp_path / "out", "--text", mine, "--json")
    gate = json.loads(done.stdout)
    assert gate["verdict"] == "passed"
    assert [text["name"] for text in gate["measurement"]["texts"]] == ["mine"]
    done = run("verify", tmp_path / "out", "--text", tmp_path / "absent.txt")
    assert done.code == 2 and "absent.txt" in done.stderr


def test_engine_that_was_taken_elsewhere_needs_a_reference(
    build: Callable[..., Done], run: Run, tmp_path: Path
) -> None:
    build()
    (tmp_path / "elsewhere").mkdir()
    engine = shutil.copytree(tmp_path / "out" / "engine", tmp_path / "elsewhere" / "engine")
    mine = tmp_path / "prose.txt"
    done = run("verify", engine, "--text", mine)
    assert done.code == 3 and "--reference" in done.stderr
    done = run("verify", engine, "--text", mine, "--reference", tmp_path / "model")
    assert done.code == 0, done.stderr
    assert (tmp_path / "elsewhere" / "gate" / "report.md").is_file()


def test_verify_refuses_what_it_cannot_judge(
    build: Callable[..., Done], run: Run, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    done = run("verify", tmp_path)
    assert done.code == 3 and "no engine in it" in done.stderr
    build()
    flip_weight_byte(tmp_path / "model")
    done = run("verify", output)
    assert done.code == 3 and "not the model" in done.stderr
    (tmp_path / "model").rename(tmp_path / "gone")
    done = run("verify", output)
    assert done.code == 3 and "the recipe's model is not there" in done.stderr
    (output / "engine" / "rank0.engine").write_bytes(b"")
    done = run("verify", output)
    assert done.code == 3 and "rank0.engine: 0 bytes" in done.stderr
