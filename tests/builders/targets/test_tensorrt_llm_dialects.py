"""The tables of TensorRT-LLM's versions, held against checkpoints NVIDIA's own tools wrote."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmc.builders.targets.tensorrt_llm.build_options import BUILD_OPTIONS, PLUGIN_OPTIONS
from llmc.builders.targets.tensorrt_llm.checkpoint_fields import parse
from llmc.builders.targets.tensorrt_llm.quantizations import (
    KV_CACHE,
    WEIGHTS,
    quantization_reasons,
)
from llmc.builders.targets.tensorrt_llm.versions import VERSIONS
from llmc.checkpoint import CheckpointConfig
from llmc.quant import FORMATS

GOLDENS = sorted((Path(__file__).parents[2] / "goldens" / "checkpoints").glob("*.json"))
ENGINE_LINES = [line for line, version in VERSIONS.items() if version.has_engines]

WHOLE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "MixtralForCausalLM")
"""Architectures of which TensorRT-LLM's keys say all there is, so that they are read alone."""


def golden(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["config"]
    return config


def test_there_are_goldens_and_lines() -> None:
    assert len(GOLDENS) > 60
    assert ENGINE_LINES == ["0.21", "1.0", "1.1", "1.2"]


@pytest.mark.parametrize("line", ENGINE_LINES)
@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_golden_has_no_unknown_or_missing_field(path: Path, line: str) -> None:
    assert parse(golden(path), line).problems == ()


@pytest.mark.parametrize(
    "path",
    [path for path in GOLDENS if golden(path)["architecture"] in WHOLE],
    ids=lambda path: path.stem,
)
def test_ours_has_no_unknown_or_missing_field(path: Path) -> None:
    ours = CheckpointConfig.from_json(golden(path)).to_json()
    if "producer" in golden(path):
        ours["producer"] = {}  # whose further keys are read and written back
    assert parse(ours, "1.2").problems == ()


def test_mistakes_are_named() -> None:
    config = golden(next(path for path in GOLDENS if path.stem == "llama"))
    del config["vocab_size"]
    config["rotary_bse"] = config.pop("rotary_base")
    config["mlp_bias"] = 0
    config["quantization"] = {**config["quantization"], "group": 64}
    assert set(parse(config, "1.2").problems) == {
        "vocab_size: missing",
        "rotary_bse: unknown key",
        "mlp_bias: 0, expected bool",
        "quantization.group: unknown key",
    }


def test_defaults_are_filled_in() -> None:
    config = golden(next(path for path in GOLDENS if path.stem == "opt"))
    values = parse(config, "1.2").values
    assert values["norm_epsilon"] == 1e-5
    assert values["mapping"]["gpus_per_node"] == 8
    assert values["quantization"]["group_size"] == 128


def test_later_versions_read_no_such_checkpoint() -> None:
    assert "Hugging Face" in parse(golden(GOLDENS[0]), "1.3").problems[0]


def test_every_format_has_its_versions() -> None:
    assert FORMATS.keys() <= WEIGHTS.keys()
    for support in (*WEIGHTS.values(), *KV_CACHE.values()):
        assert support.lines and set(support.lines) <= VERSIONS.keys()


@pytest.mark.parametrize(
    ("weights", "kv_cache", "line", "capability", "expected"),
    [
        ("W8A16", None, "1.2", 90, None),
        ("FP8", "FP8", "1.2", 89, None),
        ("FP8", None, "1.2", 80, "which compute capability 80 does not have; it runs from 89"),
        ("NVFP4", None, "1.1", 90, "it runs from 100"),
        ("W8A16", None, "1.2", 100, "it runs from 80 to 99 and from 120"),
        ("W8A8_SQ_PER_CHANNEL", None, "1.3", 90, "versions that do: 0.21, 1.0, 1.1, 1.2"),
        ("FP8", "INT8", "1.3", 90, "quantization.kv_cache: INT8, which TensorRT-LLM 1.3"),
    ],
)
def test_what_a_version_lacks_is_one_reason(
    weights: str, kv_cache: str | None, line: str, capability: int, expected: str | None
) -> None:
    reasons = quantization_reasons(frozenset({weights}), kv_cache, line, capability)
    assert len(reasons) == (expected is not None)
    assert expected is None or expected in reasons[0]


def test_options_are_trtllm_builds() -> None:
    assert BUILD_OPTIONS["max_num_tokens"].default == 8192
    assert PLUGIN_OPTIONS["tokens_per_block"].default == 32
    assert not BUILD_OPTIONS.keys() & PLUGIN_OPTIONS.keys()
    assert sum(option.flag for option in PLUGIN_OPTIONS.values()) == 28
