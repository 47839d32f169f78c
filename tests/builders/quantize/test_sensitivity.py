"""Divergence of each group quantized alone, against a whole model with those weights rounded."""

import json
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llmc.builders.hf.preflight import HfModel, examine
from llmc.builders.quantize import sensitivity
from llmc.builders.quantize.calibration import Calibration
from llmc.builders.quantize.decoder import open_decoder
from llmc.builders.quantize.mixed import Sensitivities
from llmc.builders.quantize.source import TensorSource
from llmc.builders.quantize.state import remove_states
from llmc.builders.quantize.texts import load_calibration
from llmc.checkpoint import CheckpointConfig, Quantization
from llmc.errors import BuildError
from llmc.gate.metrics import compare_rows
from llmc.log import NullProgress, Progress
from llmc.quant.format import Choice, load_format
from tests.builders.tiny_hf import write_model

ALGOS = ("W4A16", "W8A16")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    words = np.random.default_rng(1).integers(0, 64, 100)
    (tmp_path / "text.txt").write_text(" ".join(f"w{word}" for word in words))
    return write_model(tmp_path / "model")


def measure(directory: Path, model: HfModel, progress: Progress | None = None) -> Sensitivities:
    return sensitivity.measure_sensitivities(
        model,
        directory,
        CheckpointConfig(arch=model.arch, dtype="float32"),
        [Quantization.of(algo) for algo in ALGOS],
        Calibration(state_parent=directory, key="k", data=directory.parent / "text.txt"),
        progress=progress or NullProgress(),
    )


def logits(model: HfModel, directory: Path, changed: dict[str, str]) -> npt.NDArray[np.float32]:
    """Return the logits of the calibration text, weights of `changed` rounded to their format."""
    source = TensorSource(model, "float32")

    def read(name: str) -> npt.NDArray[Any]:
        values = source.read(name)
        algo = changed.get(name.removesuffix(".weight"))
        if algo is None:
            return values
        form = load_format(algo)
        return form.dequantize(form.quantize(values, Choice(dtype="float32")))

    text = directory.parent / "text.txt"
    data = load_calibration(text, directory, samples=4, max_tokens=128, vocab_size=64)
    lengths = [len(ids) for ids in data.sequences]
    config = CheckpointConfig(arch=model.arch, dtype="float32")
    with closing(open_decoder(config, read, source.read_rows)) as decoder:
        hidden = decoder.embed(np.concatenate(data.sequences), lengths)
        for layer in range(len(decoder.parts.layers)):
            hidden = decoder.load(layer).run(hidden, lengths, {})
        return decoder.head(hidden)


def test_each_group_costs_what_rounding_its_weights_costs(directory: Path) -> None:
    model, reasons = examine(directory)
    assert model is not None and not reasons
    found = measure(directory, model)
    plain = logits(model, directory, {})
    assert len(found.groups) == 4 and found.num_tokens == 100
    for group in found.groups:
        assert group.options[0].kl == 0
        for option in group.options[1:]:
            changed = {module: str(option.algo) for module in group.modules}
            rows = compare_rows(plain, logits(model, directory, changed), np.empty(0, np.int32))
            assert option.kl == pytest.approx(rows.kl.mean(), rel=1e-3, abs=1e-9), group.name
        costs = {option.algo: option.kl for option in group.options}
        assert costs["W4A16"] > 10 * costs["W8A16"] > 0
    model.weights.close()


def test_killed_measurement_goes_on_to_the_same_numbers(directory: Path) -> None:
    """SIGKILL in the second layer, after some of its variants."""
    model, _ = examine(directory)
    assert model is not None
    wanted = measure(directory, model)
    remove_states(directory)
    script = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from llmc.builders.hf.preflight import examine\n"
        "from llmc.builders.quantize.kernels import KernelDecoder, KernelLayer\n"
        "from tests.builders.quantize import test_sensitivity as here\n"
        "load, quantized, at = KernelDecoder.load, KernelLayer.quantized, []\n"
        "def loading(self, layer):\n"
        "    at.append(layer)\n"
        "    return load(self, layer)\n"
        "def quantizing(self, *rest):\n"
        "    if at[-1] == 1:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return quantized(self, *rest)\n"
        "KernelDecoder.load, KernelLayer.quantized = loading, quantizing\n"
        f"directory = Path({str(directory)!r})\n"
        "here.measure(directory, examine(directory)[0])\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (record,) = directory.glob(".calibration-mixed/sensitivity/*/state.json")
    assert json.loads(record.read_text()) == {"next_layer": 1}
    passes = Passes()
    assert measure(directory, model, passes) == wanted
    # 5 of layer 0 were done before.
    assert passes.told[0] == 5
    model.weights.close()


class Passes(NullProgress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def advance(self, amount: int) -> None:
        self.told.append(amount)


def test_full_disk_is_said_before_it_is_met(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = examine(directory)
    assert model is not None
    usage = shutil.disk_usage(directory)._replace(free=8 * (1 + 8) * 100 * 64 - 1)
    monkeypatch.setattr(sensitivity, "disk_usage", lambda path: usage)
    with pytest.raises(BuildError, match="GiB free"):
        measure(directory, model)
    model.weights.close()
