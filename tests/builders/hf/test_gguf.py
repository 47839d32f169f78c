"""GGUF import: a tiny llama written as llama.cpp writes it comes back tensor for tensor."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from llmc.builders.hf.gguf import import_gguf
from llmc.errors import CheckpointError, RecipeError, UnsupportedError
from llmc.log import NullProgress
from tests.builders.hf.tiny_gguf import TEMPLATE, TEXT, make_model, make_tokenizer, write_gguf


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Any:
    return make_model(tokenizer)


def do_import(file: Path, output: Path, dtype: str = "float32") -> bool:
    return import_gguf(file, output, dtype=dtype, progress=NullProgress())


def test_weights_and_config_come_back_equal(
    tmp_path: Path, model: Any, tokenizer: Tokenizer
) -> None:
    assert do_import(write_gguf(tmp_path / "m.gguf", model, tokenizer), tmp_path / "hf")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    want = model.state_dict()
    assert loaded.state_dict().keys() == want.keys()
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, want[name]), name
    ids = torch.arange(40)[None]
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_tokenizer_comes_back_equal(tmp_path: Path, model: Any, tokenizer: Tokenizer) -> None:
    do_import(write_gguf(tmp_path / "m.gguf", model, tokenizer), tmp_path / "hf")
    read = AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text in [TEXT[0], " a  b", "x<|im_start|>y 2024<|im_end|>", "\n", "🙂" * 3]:
        assert read.encode(text) == tokenizer.encode(text).ids, text
        assert read.decode(read.encode(text)) == text
    assert read.encode("<|im_start|>") == [1]
    assert read.eos_token_id == 2 and read.chat_template == TEMPLATE


def test_quantized_weights_are_close_and_bfloat16_is_written(
    tmp_path: Path, model: Any, tokenizer: Tokenizer
) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    file = write_gguf(tmp_path / "m.gguf", model, tokenizer, quantize=kind)
    do_import(file, tmp_path / "hf", dtype="bfloat16")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert loaded.dtype == torch.bfloat16
    for name, value in loaded.state_dict().items():
        want = model.state_dict()[name]
        # Q8_0 is off by half a step of amax/127, bfloat16 by 2**-9 of the value.
        assert (value.float() - want).abs().max() <= want.abs().max() * (0.5 / 127 + 2**-8), name


def test_second_import_is_cached_and_foreign_directories_stay(
    tmp_path: Path, model: Any, tokenizer: Tokenizer
) -> None:
    file = write_gguf(tmp_path / "m.gguf", model, tokenizer)
    assert do_import(file, tmp_path / "hf")
    assert not do_import(file, tmp_path / "hf")
    assert do_import(file, tmp_path / "hf", dtype="float16")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(RecipeError, match="mine: exists"):
        do_import(file, tmp_path / "mine")
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "qwen2"}, "general.architecture: 'qwen2', expected 'llama'"),
        ({"pre": "tekken"}, "tokenizer.ggml.pre: 'tekken', expected one of"),
        ({"extra": "rope_freqs.weight"}, "rope_freqs.weight: no Hugging Face counterpart"),
    ],
)
def test_what_cannot_be_converted_is_named_and_leaves_nothing(
    tmp_path: Path,
    model: Any,
    tokenizer: Tokenizer,
    changes: dict[str, Any],
    message: str,
) -> None:
    file = write_gguf(tmp_path / "m.gguf", model, tokenizer, **changes)
    with pytest.raises(UnsupportedError, match=message):
        do_import(file, tmp_path / "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_missing_tensor_and_truncated_file_are_named(
    tmp_path: Path, model: Any, tokenizer: Tokenizer
) -> None:
    file = write_gguf(tmp_path / "m.gguf", model, tokenizer, drop="blk.1.ffn_up.weight")
    with pytest.raises(CheckpointError, match="layers.1.mlp.up_proj.weight: missing"):
        do_import(file, tmp_path / "hf")
    whole = write_gguf(tmp_path / "w.gguf", model, tokenizer).read_bytes()
    for length in (0, 100, len(whole) - 100):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="cut.gguf"):
            do_import(tmp_path / "cut.gguf", tmp_path / "hf")
    with pytest.raises(CheckpointError, match="no such file"):
        do_import(tmp_path / "absent.gguf", tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
