"""Every way a Hugging Face model can be wrong before its values are looked at, one line each."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.builders.hf.preflight import examine
from tests.builders.hf_models import (
    Tensors,
    shard_name,
    tiny_config,
    tiny_tensors,
    write_index,
    write_tiny,
)
from tests.goldens import golden

UP = "model.layers.1.mlp.up_proj.weight"


def reasons_of(directory: Path) -> list[str]:
    model, reasons = examine(directory)
    if model is not None:
        model.weights.close()
    assert all("\n" not in reason for reason in reasons)
    return reasons


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_whole_model_has_no_reasons(num_shards: int, tmp_path: Path) -> None:
    assert reasons_of(write_tiny(tmp_path, tiny_config(), num_shards=num_shards)) == []


def missing_shard(directory: Path) -> str:
    path = directory / shard_name(1, 3)
    path.unlink()
    return rf"{path}: missing shard, which holds \S+ and \d+ more tensors"


def truncated_shard(directory: Path) -> str:
    path = directory / shard_name(2, 3)
    path.write_bytes(path.read_bytes()[:-7])
    return rf"{path}: truncated at model\.\S+: \d+ bytes, expected at least \d+"


def promised_tensor(directory: Path) -> str:
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    shards = {shard_name(shard, 3) for shard in range(3)}
    shard = min(shards - {index["weight_map"][UP]})
    write_index(directory, index["weight_map"] | {UP: shard})
    return rf"{directory / shard}: {UP}: not in this shard, as model.safetensors.index.json"


def duplicate_tensor(directory: Path) -> str:
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    golden.write_safetensors(directory / "extra.safetensors", {UP: np.zeros(3, np.float32)})
    write_index(directory, index["weight_map"] | {"x": "extra.safetensors"})
    return rf"\S+: {UP}: also in \S+, expected once"


def shard_outside(directory: Path) -> str:
    write_index(directory, {UP: "../elsewhere.safetensors"})
    return r"\S+index.json: " + UP + r": shard '../elsewhere.safetensors', expected a file name"


def empty_index(directory: Path) -> str:
    write_index(directory, {})
    return r"\S+index.json: weight_map: {}, expected tensors and shards"


def no_weights(directory: Path) -> str:
    for path in directory.glob("*.safetensors*"):
        path.unlink()
    return rf"{directory}: neither model.safetensors nor model.safetensors.index.json"


def pickled_weights(directory: Path) -> str:
    no_weights(directory)
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x04")
    return rf"{directory / 'pytorch_model.bin'}: a pickled checkpoint, which can run code"


@pytest.mark.parametrize(
    "damage",
    [
        missing_shard,
        truncated_shard,
        promised_tensor,
        duplicate_tensor,
        shard_outside,
        empty_index,
        no_weights,
        pickled_weights,
    ],
)
def test_damaged_files_are_named(damage: Callable[[Path], str], tmp_path: Path) -> None:
    directory = write_tiny(tmp_path, tiny_config(), num_shards=3)
    wanted = damage(directory)
    reasons = reasons_of(directory)
    assert any(re.match(wanted, reason) for reason in reasons), reasons


def test_a_missing_shard_does_not_make_its_tensors_missing_too(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path, tiny_config(), num_shards=3)
    missing_shard(directory)
    assert len(reasons_of(directory)) == 1


def without(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__delitem__(name)


def with_tensor(name: str, *shape: int, dtype: Any = np.float32) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__setitem__(name, np.zeros(shape, dtype))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without(UP), f"{UP}: missing"),
        (
            without("lm_head.weight"),
            "lm_head.weight: missing (tie_word_embeddings is not set, so the model needs its own)",
        ),
        (without("model.layers.0.self_attn.k_proj.bias"), "k_proj.bias: missing"),
        (with_tensor(UP, 48, 64), f"{UP}: shape (48, 64), expected (64, 48)"),
        (
            with_tensor("model.layers.0.self_attn.v_proj.weight", 16, 48),
            "v_proj.weight: shape (16, 48), expected (32, 48)",
        ),
        (with_tensor(UP, 64, 48, dtype=np.int8), f"{UP}: dtype int8, expected one of float32"),
        (with_tensor("model.layers.2.input_layernorm.weight", 48), "not a tensor of Llama"),
        (with_tensor("model.layers.0.self_attn.q_norm.weight", 16), "not a tensor of Llama"),
    ],
)
def test_every_tensor_is_accounted_for(
    change: Callable[[Tensors], None], reason: str, tmp_path: Path
) -> None:
    config = tiny_config()
    tensors = tiny_tensors(config)
    change(tensors)
    (found,) = reasons_of(write_tiny(tmp_path, config, tensors))
    assert reason in found and str(tmp_path) in found


def test_known_leftovers_are_harmless(tmp_path: Path) -> None:
    config = tiny_config()
    tensors = tiny_tensors(config)
    with_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", 8)(tensors)
    assert reasons_of(write_tiny(tmp_path, config, tensors)) == []


@pytest.mark.parametrize("flag", [True, False, None])
@pytest.mark.parametrize("output", ["absent", "equal", "differing"])
def test_ties(flag: bool | None, output: str, tmp_path: Path) -> None:
    config = tiny_config(tie_word_embeddings=flag)
    tensors = tiny_tensors(config | {"tie_word_embeddings": True})
    if output != "absent":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    if output == "differing":
        tensors["lm_head.weight"][100, 47] += 1
    reasons = reasons_of(write_tiny(tmp_path, config, tensors))
    if flag and output == "differing":
        (reason,) = reasons
        assert "lm_head.weight: differs from model.embed_tokens.weight" in reason
    elif not flag and output == "absent":
        (reason,) = reasons
        assert "lm_head.weight: missing (tie_word_embeddings is not set" in reason
    else:
        assert reasons == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": "48"}, "hidden_size: '48', expected int"),
        ({"vocab_size": 0}, "vocab_size: 0, expected at least 1"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3, expected a divisor of"),
        ({"hidden_act": "selu"}, "hidden_act: 'selu', expected one of silu, "),
        ({"hidden_act": 3}, "hidden_act: 3, expected str"),
        ({"rope_interleaved": True}, "rope_interleaved: True, expected False"),
        ({"rope_scaling": {"type": "xpos"}}, "rope_scaling.rope_type: 'xpos'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quant_method: '', expected"),
        ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping: 30.0, expected no such"),
        ({"torch_dtype": "float8"}, "dtype: 'float8', expected one of"),
        ({"head_dim": None, "num_attention_heads": 5}, "hidden_size: 48, expected a multiple of"),
    ],
)
def test_a_setting_that_is_not_handled_is_an_error(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    directory = write_tiny(tmp_path, tiny_config())
    (directory / "config.json").write_text(json.dumps(tiny_config(**changes)))
    assert any(f"config.json: {reason}" in line for line in reasons_of(directory))


def test_an_unknown_architecture_is_refused_with_the_known(tmp_path: Path) -> None:
    config = tiny_config() | {"architectures": ["XForCausalLM"]}
    (reason,) = reasons_of(write_tiny(tmp_path, config, tiny_tensors(tiny_config())))
    assert "'XForCausalLM', expected one of " in reason and "LlamaForCausalLM" in reason


def test_remote_code_is_never_imported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code: dict[str, Any] = {"auto_map": {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}}
    directory = write_tiny(tmp_path, tiny_config(**code))
    (directory / "modeling_x.py").write_text("raise SystemExit('imported')")
    with caplog.at_level(logging.INFO):
        assert reasons_of(directory) == []
    assert "auto_map: not imported; LlamaForCausalLM is known here" in caplog.text

    config = tiny_config(**code) | {"architectures": ["XForCausalLM"]}
    (directory / "config.json").write_text(json.dumps(config))
    (reason,) = reasons_of(directory)
    assert "the code it brings along (auto_map) is never imported" in reason


@pytest.mark.parametrize("value", [101, -1, "2", [2, 101], True])
def test_token_ids_outside_the_vocabulary_are_named(value: Any, tmp_path: Path) -> None:
    directory = write_tiny(tmp_path, tiny_config())
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    (reason,) = reasons_of(directory)
    assert "generation_config.json: eos_token_id: " in reason and "below 101" in reason


def test_problems_of_every_kind_come_together(tmp_path: Path) -> None:
    config = tiny_config(surprise=1, hidden_act="selu")
    tensors = tiny_tensors(tiny_config())
    without(UP)(tensors)
    directory = write_tiny(tmp_path, config, tensors)
    (directory / "generation_config.json").write_text("[]")
    kinds = ("hidden_act", "surprise", f"{UP}: missing", "generation_config.json")
    reasons = reasons_of(directory)
    assert len(reasons) == len(kinds)
    for kind in kinds:
        assert any(kind in reason for reason in reasons)


def test_a_config_and_weights_that_are_both_missing_are_both_named(tmp_path: Path) -> None:
    first, second = reasons_of(tmp_path)
    assert "config.json: cannot be read" in first and "neither model.safetensors" in second


def test_the_dtype_without_a_word_is_that_of_the_weights(tmp_path: Path) -> None:
    config = tiny_config(torch_dtype=None)
    model, reasons = examine(write_tiny(tmp_path, config, tiny_tensors(config, "bfloat16")))
    assert model is not None and reasons == []
    assert model.dtype == "bfloat16"
