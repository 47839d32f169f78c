"""`llmc refit`: the file's weights are those the network would have had embedded."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.builders.convert import convert
from llmc.builders.targets.tensorrt_network import make_shape
from llmc.builders.targets.tensorrt_stepping import lower_ranks
from llmc.checkpoint import Checkpoint, Quantization
from llmc.log import NullProgress
from llmc.mapping import Mapping
from llmc.weights import SafetensorsFile
from tests.builders.families.tiny_families import write_case
from tests.builders.targets.tensorrt_networks import TOOLKIT
from tests.cli.run import llmc
from tests.plugins.tiny_llama import TinyLlama
from tests.runtime.cpu_engines import write_checkpoint

MAX_SEQ_LEN = 32


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    return partial(llmc, "refit", capsys=capsys, monkeypatch=monkeypatch)


def write_engine(checkpoint: Checkpoint, directory: Path, *, weights: str = "refit") -> Path:
    """Write as much of an engine as a refit reads."""
    directory.mkdir()
    config = {
        "pretrained_config": checkpoint.config.to_json(),
        "build_config": {"max_seq_len": MAX_SEQ_LEN},
        "llmc": {"target": "tensorrt-rtx", "weights": weights},
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    tiny = TinyLlama.make()
    return write_checkpoint(tiny, tiny.config(tp=2), tmp_path / "checkpoint")


@pytest.fixture
def experts(tmp_path: Path) -> Checkpoint:
    """Two ranks with half of the experts each, quantized: stacked tensors of every kind."""
    model, _ = write_case(tmp_path / "mixtral", "mixtral")
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    convert(
        model,
        directory,
        dtype="float16",
        mapping=Mapping(tp_size=2, moe_ep_size=2),
        quantization=Quantization.of("W4A16", None),
        progress=NullProgress(),
        workers=1,
    )
    return Checkpoint.open(directory)


@pytest.mark.parametrize("written", ["checkpoint", "experts"])
def test_every_rank_gets_the_weights_of_its_network(
    run: Any, written: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    checkpoint = request.getfixturevalue(written)
    engine = write_engine(checkpoint, tmp_path / "engine")
    done = run(engine)
    assert done.code == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        str(engine / f"rank{rank}.weights.safetensors") for rank in range(2)
    ]
    networks = lower_ranks(TOOLKIT, checkpoint, max_seq_len=MAX_SEQ_LEN, table_inputs=True)
    for rank, lowered in enumerate(networks):
        file = SafetensorsFile.open(engine / f"rank{rank}.weights.safetensors")
        assert file.infos.keys() == lowered.weights.keys()
        for name, weight in lowered.weights.items():
            shape = make_shape(weight.shape, weight.dtype)
            wanted = np.asarray(weight.make()).reshape(shape)
            np.testing.assert_array_equal(file.read(name), wanted, name)


def test_what_cannot_be_refitted_is_refused(
    run: Any, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    whole = write_engine(checkpoint, tmp_path / "whole", weights="embed")
    assert run(whole).code == 3 and "nothing to refit" in run(whole).stderr
    engine = write_engine(checkpoint, tmp_path / "engine")
    tiny = TinyLlama.make(num_hidden_layers=2)
    other = write_checkpoint(tiny, tiny.config(tp=2), tmp_path / "other")
    done = run(engine, other.directory)
    assert done.code == 3 and "not the one" in done.stderr
