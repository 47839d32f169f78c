"""Checkpoints of quantized experts, converted from the model, against NVIDIA's.

The input scales of FP8 came from a text that is not stored; of those names, shapes and dtypes are
compared.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from llmc.builders.convert import convert
from llmc.builders.quantize.calibration import Calibration
from llmc.checkpoint import Checkpoint, Quantization
from llmc.log import NullProgress
from llmc.mapping import Mapping
from tests.goldens import golden

LAYOUTS = {
    # Written as for compute capability 9.0, where experts are laid out as for 8.0.
    "mixtral-quant-int8_wo": "sm90",
    "mixtral-quant-int4_wo-sm-80": "sm80",
    "mixtral-quant-modelopt-fp8": None,
}


def write_words(model_dir: Path, vocab_size: int) -> None:
    """Write a tokenizer of the words w0, w1, …"""
    words = {f"w{index}": index for index in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocab=words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(model_dir / "tokenizer.json"))


def converted(tmp_path: Path, wanted: dict[str, Any], layout: str | None) -> Checkpoint:
    model_dir, output = golden.write_model(tmp_path / "model", wanted["model"]), tmp_path / "out"
    write_words(model_dir, 512)
    (tmp_path / "text.txt").write_text(" ".join(f"w{index * 37 % 512}" for index in range(400)))
    output.mkdir()
    convert(
        model_dir,
        output,
        dtype="float16",
        mapping=Mapping(),
        quantization=Quantization.of(wanted["config"]["quantization"]["quant_algo"]),
        layout=layout,
        calibration=Calibration(
            state_parent=tmp_path, key="k", data=tmp_path / "text.txt", samples=4, max_tokens=64
        ),
        progress=NullProgress(),
        workers=2,
    )
    return Checkpoint.open(output)


@pytest.mark.parametrize("name", LAYOUTS)
def test_golden_quantized_experts_are_equal(name: str, tmp_path: Path) -> None:
    wanted = golden.load_checkpoint(name)
    checkpoint = converted(tmp_path, wanted, LAYOUTS[name])
    file, entries = checkpoint.rank(0), wanted["ranks"]["rank0.safetensors"]
    assert file.infos.keys() == entries.keys()
    for tensor, entry in entries.items():
        info = file.infos[tensor]
        assert (info.dtype, list(info.shape)) == (entry["dtype"], entry["shape"]), tensor
        if not tensor.endswith("activation_scaling_factor"):
            assert golden.sha256(file.read(tensor)) == entry["sha256"], tensor
    written = json.loads((checkpoint.directory / "config.json").read_text())
    for key in ("architecture", "moe", "mapping", "intermediate_size", "hidden_act"):
        assert written[key] == wanted["config"][key]
    excluded = {*(wanted["config"]["quantization"].pop("exclude_modules") or ())}
    assert {*(written["quantization"].pop("exclude_modules") or ())} == excluded
    assert written["quantization"] == wanted["config"]["quantization"]


def test_golden_input_scales_are_of_the_size_that_modelopt_found(tmp_path: Path) -> None:
    """Another text, the same model: within a factor of two."""
    name = "mixtral-quant-modelopt-fp8"
    wanted = golden.load_checkpoint(name)
    file = converted(tmp_path, wanted, None).rank(0)
    scales = [tensor for tensor in file.infos if tensor.endswith("activation_scaling_factor")]
    assert len(scales) == 8
    for tensor in scales:
        (theirs,) = wanted["ranks"]["rank0.safetensors"][tensor]["values"]
        assert 0.5 < float(file.read(tensor)[0]) / theirs < 2, tensor
