"""`llmc build` of an engine that this machine cannot run: it is built, not gated, not emitted."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from llmc.errors import GateError, UnsupportedError
from llmc.gate.record import require_passed
from llmc.runtime.engines import tensorrt_loading
from tests.builders.tiny_hf import write_model
from tests.cli.run import Done, llmc

pytest.importorskip("tensorrt_rtx_bindings", reason="needs TensorRT for RTX: pip install .[rtx]")


def test_engine_for_another_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # No GPU is of this kind: the test is the same on a machine that has one.
    monkeypatch.setattr(tensorrt_loading, "choose_plan", refuse_plan)
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path / "cache"))
    model = write_model(tmp_path / "model", num_hidden_layers=1)
    output = tmp_path / "out"
    flags = ("--target", "tensorrt-rtx", "--compute-capability", 89, "--dtype", "float16")
    run: Callable[..., Done] = partial(
        llmc, "build", model, "-o", output, *flags, capsys=capsys, monkeypatch=monkeypatch
    )
    done = run()
    assert done.code == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["checkpoint", "engine"]
    (line,) = [line for line in done.stderr.splitlines() if "not gated" in line]
    assert "cannot run here" in line and f"llmc verify --network {output}/checkpoint" in line
    assert sorted(path.name for path in output.iterdir()) == ["checkpoint", "engine", "recipe.yaml"]
    with pytest.raises(GateError, match="never passed the quality gate"):
        require_passed(output / "engine")
    # Asked for the gate itself, that there is none is an error.
    done = run("--until", "gate")
    assert done.code == 5 and "error: " in done.stderr and "cannot run here" in done.stderr
    done = run("--allow-ungated", "--json")
    assert done.code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["gate"] is None
    assert [(stage["stage"], stage["cached"]) for stage in told["stages"]] == [
        ("checkpoint", True),
        ("engine", True),
        ("model_repo", False),
    ]
    done = llmc("serve", output / "model_repo", capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 8 and "never passed the quality gate" in done.stderr


def refuse_plan(plans: object, rank: int, capability: int) -> str:
    raise UnsupportedError(f"compute capability {capability}: no plan")
