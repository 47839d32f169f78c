"""What may be served: an engine that passed, unchanged since."""

import json
import shutil
from pathlib import Path

import pytest

from llmc import artifacts
from llmc.errors import CheckpointError, GateError
from llmc.gate.record import (
    GATE_NAME,
    is_kept_aside,
    read_gate,
    read_measurement,
    require_passed,
    write_record,
)
from llmc.gate.thresholds import default_thresholds, judge
from tests.gate.records import measurement, text


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return make_engine(tmp_path / "engine", b"weights")


def make_engine(directory: Path, content: bytes) -> Path:
    directory.mkdir()
    (directory / "rank0.engine").write_bytes(content)
    artifacts.write_manifest(directory, stage="engine", inputs={}, recipe={}, tools={})
    return directory


def gate(engine: Path, *, mean_kl: float = 0.001) -> None:
    digest = artifacts.read_manifest(engine).content_digest
    found = measurement(text(mean_kl=mean_kl), engine=digest)
    write_record(engine / GATE_NAME, judge(found, default_thresholds(None, None)))


def test_passed_engine_is_let_through(engine: Path) -> None:
    gate(engine)
    assert require_passed(engine) == read_gate(engine)
    shutil.move(engine, engine.with_name("moved"))
    assert require_passed(engine.with_name("moved")).verdict == "passed"


def test_ungated_engine_is_refused(engine: Path) -> None:
    with pytest.raises(GateError, match="never passed the quality gate: no gate.json") as caught:
        require_passed(engine)
    assert "llmc verify" in caught.value.hint and "--allow-ungated" in caught.value.hint


def test_failed_engine_is_refused_with_its_numbers(engine: Path) -> None:
    gate(engine, mean_kl=0.5)
    with pytest.raises(GateError, match="prose: mean_kl 0.5, expected at most 0.01"):
        require_passed(engine)


def test_gate_of_another_engine_is_refused(engine: Path, tmp_path: Path) -> None:
    """A verdict is copied to another engine, or an engine put in the place of a gated one."""
    gate(engine)
    other = make_engine(tmp_path / "other", b"worse weights")
    shutil.copyfile(engine / GATE_NAME, other / GATE_NAME)
    with pytest.raises(GateError, match="gate.json is about engine"):
        require_passed(other)
    shutil.copyfile(other / "rank0.engine", engine / "rank0.engine")
    with pytest.raises(GateError, match="rank0.engine: 13 bytes, expected 7"):
        require_passed(engine)


def test_changed_byte_is_refused(engine: Path) -> None:
    gate(engine)
    (engine / "rank0.engine").write_bytes(b"Weights")
    with pytest.raises(GateError, match="rank0.engine: sha256"):
        require_passed(engine)


def test_engine_kept_aside_is_named(engine: Path) -> None:
    gate(engine, mean_kl=0.5)
    assert not is_kept_aside(engine)
    engine.rename(engine.with_name("engine.failed"))
    assert is_kept_aside(engine)
    with pytest.raises(GateError, match=r"failed the quality gate and is .*engine\.failed"):
        require_passed(engine)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"verdict": "maybe"}, "verdict: "),
        ({"checks": [{"text": "x"}]}, "checks.0."),
        ({"surplus": 1}, "surplus: "),
    ],
)
def test_edited_gate_is_no_gate(engine: Path, change: dict[str, object], said: str) -> None:
    gate(engine)
    data = json.loads((engine / GATE_NAME).read_text())
    (engine / GATE_NAME).write_text(json.dumps(data | change))
    with pytest.raises(CheckpointError, match=f"gate.json: {said}"):
        require_passed(engine)


def test_measurement_that_is_missing_or_cut_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"measurement\.json: No such file"):
        read_measurement(tmp_path)
    write_record(tmp_path / "measurement.json", measurement())
    assert read_measurement(tmp_path) == measurement()
    (tmp_path / "measurement.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"measurement\.json: file: Invalid JSON"):
        read_measurement(tmp_path)
