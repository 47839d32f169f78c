"""Stages run once, are reused while nothing that matters changed, and leave nothing half done."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmc import artifacts
from llmc.builders import pipeline
from llmc.builders.targets import cpu
from llmc.errors import CheckpointError, UnsupportedError
from llmc.log import NullProgress
from llmc.recipes.loader import Override, load_recipe, parse_set
from llmc.recipes.schema import BuildRecipe, Recipe
from llmc.stages import StageResult
from tests.builders.tiny_hf import flip_weight_byte, write_model


def recipe(model: Path, *settings: str) -> Recipe:
    override = Override(path=("model",), value=str(model), source="test")
    return load_recipe(None, [override, *map(parse_set, settings)])


def build(
    model: Path, output: Path, *settings: str, until: Any = "engine", force: bool = False
) -> dict[str, StageResult]:
    reported: list[StageResult] = []
    results = pipeline.build(
        recipe(model, *settings),
        output,
        until=until,
        progress=NullProgress(),
        report=reported.append,
        force=force,
    )
    assert reported == list(results)
    return {result.manifest.stage: result for result in results}


def cached(results: dict[str, StageResult]) -> dict[str, bool]:
    return {stage: result.cached for stage, result in results.items()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def test_engine_directory_is_complete_and_traceable(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    results = build(model, output, "quantization.algo=W8A16")
    assert cached(results) == {"checkpoint": False, "engine": False}
    for stage in ("checkpoint", "engine"):
        assert artifacts.verify(output / stage) == []
    names = {path.name for path in (output / "engine").iterdir()}
    assert names == {
        *("config.json", "rank0.engine", "manifest.json"),
        *("tokenizer.json", "tokenizer_config.json", "generation_config.json"),
    }
    manifest = results["engine"].manifest
    assert manifest.inputs == {"checkpoint": results["checkpoint"].manifest.content_digest}
    assert manifest.target == {"kind": "cpu"}
    config = json.loads((output / "engine" / "config.json").read_text())
    assert config["build_config"]["max_seq_len"] == 128
    assert config["build_config"]["max_input_len"] == 127


def test_until_checkpoint_stops_there(model: Path, tmp_path: Path) -> None:
    build(model, tmp_path / "out", until="checkpoint")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["checkpoint"]


def test_same_inputs_are_reused_even_after_moves(model: Path, tmp_path: Path) -> None:
    first = build(model, tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "moved")
    model.rename(tmp_path / "elsewhere")
    os.utime(tmp_path / "elsewhere" / "model.safetensors", (0, 0))
    second = build(tmp_path / "elsewhere", tmp_path / "moved")
    assert cached(second) == {"checkpoint": True, "engine": True}
    assert second["engine"].manifest == first["engine"].manifest


def test_one_changed_weight_byte_is_a_miss(model: Path, tmp_path: Path) -> None:
    before = build(model, tmp_path / "out")
    flip_weight_byte(model)
    after = build(model, tmp_path / "out")
    assert cached(after) == {"checkpoint": False, "engine": False}
    assert before["engine"].manifest.files != after["engine"].manifest.files


def test_only_what_depends_on_a_change_runs_again(model: Path, tmp_path: Path) -> None:
    build(model, tmp_path / "out")
    (model / "README.md").write_text("no stage reads this")
    assert cached(build(model, tmp_path / "out")) == {"checkpoint": True, "engine": True}
    after = build(model, tmp_path / "out", "build.max_batch_size=2")
    assert cached(after) == {"checkpoint": True, "engine": False}
    after = build(model, tmp_path / "out", "build.max_batch_size=2", "dtype=float16")
    assert cached(after) == {"checkpoint": False, "engine": False}
    after = build(model, tmp_path / "out", "build.max_batch_size=2", "dtype=float16", force=True)
    assert cached(after) == {"checkpoint": False, "engine": False}


@pytest.mark.parametrize("name", ["checkpoint/rank0.safetensors", "engine/rank0.engine"])
def test_damage_is_repaired(model: Path, tmp_path: Path, name: str) -> None:
    first = build(model, tmp_path / "out")
    path = tmp_path / "out" / name
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    stage = path.parent.name
    second = build(model, tmp_path / "out")
    assert not second[stage].cached
    assert second[stage].manifest == first[stage].manifest
    assert artifacts.verify(path.parent) == []
    # What the repaired checkpoint makes is the same, so the engine is not built again.
    assert second["engine"].cached == (stage == "checkpoint")


def test_every_reason_is_reported_before_any_work(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        build(
            model,
            tmp_path / "out",
            *("quantization.algo=INT3", "quantization.kv_cache=INT3", "mapping.tp=3"),
            *("build.max_seq_len=256", "build.max_input_len=300", "build.max_num_tokens=8"),
        )
    text = caught.value.message
    for part in ("W8A16", "kv_cache", "tp_size", "max_seq_len: 256", "max_input_len: 300"):
        assert part in text
    assert "max_num_tokens: 8, expected at least build.max_batch_size 64" in text
    assert not (tmp_path / "out").exists()


def test_mapping_that_contradicts_itself_is_unsupported(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"moe_tp_size 3 \* moe_ep_size 1 = 3"):
        build(model, tmp_path / "out", "mapping.moe_tp=3", "mapping.moe_ep=1")


def test_damaged_model_is_the_inputs_fault(model: Path, tmp_path: Path) -> None:
    os.truncate(model / "model.safetensors", 5000)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        build(model, tmp_path / "out")
    with pytest.raises(CheckpointError, match="absent"):
        build(tmp_path / "absent", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_failing_stage_keeps_the_one_before(model: Path, tmp_path: Path) -> None:
    """NaN is found while converting; the checkpoint that was there is untouched."""
    build(model, tmp_path / "out")
    before = artifacts.read_manifest(tmp_path / "out" / "checkpoint")
    with (model / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\x00\x00\xc0\x7f")
    with pytest.raises(CheckpointError, match="nan at"):
        build(model, tmp_path / "out")
    assert artifacts.read_manifest(tmp_path / "out" / "checkpoint") == before
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoint", "engine"]


def test_terminated_build_leaves_nothing(model: Path, tmp_path: Path) -> None:
    """The converter is held where half of its files are written, then the process gets SIGTERM."""
    script = (
        "import sys, time\n"
        "from llmc.builders import pipeline\n"
        "from llmc.cli import main\n"
        "def slow(model_dir, staging, **rest):\n"
        "    (staging / 'rank0.safetensors').write_text('half')\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "pipeline.convert = slow\n"
        "sys.argv = ['llmc', 'build', sys.argv[1], '-o', sys.argv[2]]\n"
        "main.main()\n"
    )
    output = tmp_path / "out"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(model), str(output)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert [path.name for path in output.iterdir()] == [f"checkpoint.tmp-{process.pid}"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert not output.exists()


def test_limits_left_open_come_from_the_model() -> None:
    limits = pipeline.resolve_limits(BuildRecipe(), 2048, cpu)
    assert (limits.max_seq_len, limits.max_input_len) == (2048, 2047)
    assert pipeline.limit_reasons(limits, 2048) == []
    limits = pipeline.resolve_limits(BuildRecipe(max_seq_len=100, max_input_len=10), 2048, cpu)
    assert (limits.max_seq_len, limits.max_input_len) == (100, 10)
