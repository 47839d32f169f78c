"""`llmc inspect` tells the kinds apart, says what is inside and notices damage."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from llmc.cli.inspect import _plan_facts
from tests.builders.tiny_hf import write_model
from tests.cli.run import Done, llmc

Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("LLMC_LOG", "warning")
    monkeypatch.setenv("COLUMNS", "200")
    return partial(llmc, capsys=capsys, monkeypatch=monkeypatch)


@pytest.fixture
def output(run: Run, tmp_path: Path) -> Path:
    write_model(tmp_path / "model")
    done = run(
        "build",
        tmp_path / "model",
        "-o",
        tmp_path / "out",
        "--tp",
        "2",
        "--quant",
        "W8A16",
        "--until",
        "checkpoint",
    )
    assert done.code == 0, done.stderr
    done = run("build", tmp_path / "model", "-o", tmp_path / "out1")
    assert done.code == 0, done.stderr
    return tmp_path


def facts(run: Run, path: Path) -> dict[str, object]:
    done = run("inspect", path, "--json")
    assert done.code == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_hugging_face_directory(run: Run, output: Path) -> None:
    found = facts(run, output / "model")
    assert found["kind"] == "Hugging Face checkpoint"
    assert found["tensors"] == 21
    assert found["tensor_bytes"] == {"float32": sum_bytes(output / "model")}
    assert "manifest" not in found


def sum_bytes(directory: Path) -> int:
    from llmc.weights import SafetensorsFile

    infos = SafetensorsFile.open(directory / "model.safetensors").infos
    return sum(info.num_bytes for info in infos.values())


def test_checkpoint(run: Run, output: Path) -> None:
    found = facts(run, output / "out" / "checkpoint")
    assert found["kind"] == "checkpoint"
    assert found["mapping"]["tp_size"] == 2  # type: ignore[index]
    assert found["quantization"]["quant_algo"] == "W8A16"  # type: ignore[index]
    assert found["damage"] == []
    names = [file["name"] for file in found["files"]]  # type: ignore[attr-defined]
    assert {"rank0.safetensors", "rank1.safetensors"} <= set(names)
    assert all(len(file["sha256"]) == 64 for file in found["files"])  # type: ignore[attr-defined]


def test_engine(run: Run, output: Path) -> None:
    found = facts(run, output / "out1" / "engine")
    assert (found["kind"], found["target"]) == ("engine", "cpu")
    assert found["limits"]["max_seq_len"] == 128  # type: ignore[index]
    assert found["tokens_per_block"] == 32


def test_weights_a_plan_takes_as_inputs_are_listed() -> None:
    own = {
        "weights": "refit",
        "bindings": [{"name": "token_ids"}, {"name": "lm_head.weight", "is_weight": True}],
        "plans": [{"file": "rank0.sm89.engine", "rank": 0}],
    }
    facts = _plan_facts(own)
    assert facts["weight_inputs"] == ["lm_head.weight"]
    assert facts["plans"] == {"rank0.sm89.engine": {"rank": 0}}
    assert _plan_facts({}) == {}


def test_repository(run: Run, output: Path) -> None:
    found = facts(run, output / "out1" / "model_repo")
    assert found["kind"] == "model repository"
    assert found["models"]["tensorrt_llm"] == {  # type: ignore[index]
        "backend": "python",
        "max_batch_size": 64,
        "decoupled": True,
        "instances": 1,
    }


def test_whole_output_and_its_table(run: Run, output: Path) -> None:
    found = facts(run, output / "out1")
    kinds = [part["kind"] for part in found["artifacts"]]  # type: ignore[attr-defined]
    assert kinds == ["checkpoint", "engine", "model repository"]
    done = run("inspect", output / "out1")
    assert done.code == 0
    for text in ("LlamaForCausalLM", "limits.max_seq_len", "rank0.engine", "sha256", "KiB"):
        assert text in done.stdout


def test_damage_is_told_after_the_facts(run: Run, output: Path) -> None:
    path = output / "out1" / "engine" / "rank0.engine"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    done = run("inspect", output / "out1", "--json")
    assert done.code == 3
    assert json.loads(done.stdout)["artifacts"][1]["damage"]
    assert f"error: {path}: sha256" in done.stderr
    assert run("inspect", output / "out1", "--no-verify").code == 0


@pytest.mark.parametrize("config", [None, "{", "[]", '{"pretrained_config": {}}'])
def test_what_cannot_be_read(run: Run, tmp_path: Path, config: str | None) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    done = run("inspect", tmp_path)
    assert done.code == 3
    assert done.stderr.startswith(f"error: {tmp_path}")
