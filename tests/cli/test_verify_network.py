"""`llmc verify --network`: on the checkpoint of a build, and on one whose lowering has a fault."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from llmc.builders.network import build_network
from llmc.builders.targets import tensorrt_network
from tests.builders.targets.test_tensorrt_faults import double_scale
from tests.builders.tiny_hf import write_model
from tests.cli.run import Done, llmc
from tests.gate.built import write_text


@pytest.fixture
def verify(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Done]:
    """Convert a tiny model in float16; return `llmc verify --network` on a text it knows."""
    monkeypatch.setenv("LLMC_LOG", "warning")
    run = partial(llmc, capsys=capsys, monkeypatch=monkeypatch)
    model = write_model(tmp_path / "model")
    text = write_text(tmp_path / "words.txt")
    done = run("build", model, "-o", tmp_path / "out", "--dtype", "float16", "--until", "engine")
    assert done.code == 0, done.stderr
    return partial(run, "verify", "--network", "--text", text)


def test_the_network_of_a_build_is_its_model(verify: Callable[..., Done], tmp_path: Path) -> None:
    for place in ("out", "out/checkpoint", "out/engine"):
        done = verify(tmp_path / place)
        assert done.code == 0, done.stderr
        assert done.stdout.startswith("words: 64 tokens through ")
    told = json.loads(verify(tmp_path / "out", "--json").stdout)["words"]
    assert told["passed"] and 0 < told["max_difference"] < 1e-4 * told["spread"]
    typed = json.loads(verify(tmp_path / "out", "--json", "--typed").stdout)["words"]
    assert told["max_difference"] < typed["max_difference"]


def test_another_network_fails(
    verify: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tensorrt_network, "build_network", lambda *given: double_scale(build_network(*given))
    )
    done = verify(tmp_path / "out")
    assert done.code == 8
    assert "the network is not the model: on words logits differ by" in done.stderr


def test_nothing_to_verify(verify: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    done = verify(tmp_path / "empty" / "deep")
    assert done.code == 3 and "no checkpoint in it or beside it" in done.stderr
