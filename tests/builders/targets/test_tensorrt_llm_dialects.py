"""The tables of TensorRT-LLM's versions, held against checkpoints NVIDIA's own tools wrote."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from llmc.builders.families import FAMILIES
from llmc.builders.families.family import load_family
from llmc.builders.families.support import example
from llmc.builders.targets.tensorrt_llm.build_options import BUILD_OPTIONS, PLUGIN_OPTIONS
from llmc.builders.targets.tensorrt_llm.checkpoint_fields import parse
from llmc.builders.targets.tensorrt_llm.quantizations import (
    KV_CACHE,
    WEIGHTS,
    quantization_reasons,
)
from llmc.checkpoint import CheckpointConfig
from llmc.quant import FORMATS
from llmc.recipes.plugins import PluginRecipe
from llmc.tensorrt_llm_versions import VERSIONS

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


@pytest.mark.parametrize(
    "architecture", [name for name in FAMILIES if load_family(name).tensorrt_llm is not None]
)
def test_every_family_of_a_version_has_its_keys(architecture: str) -> None:
    arch = load_family(architecture).arch(example(architecture))
    config = CheckpointConfig(arch=arch, dtype="bfloat16")
    assert parse(config.to_json(), "1.2").problems == ()


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
    assert not BUILD_OPTIONS.keys() & PLUGIN_OPTIONS.keys()


PLUGIN_CONFIG = """
dtype=float16 bert_attention_plugin=auto gpt_attention_plugin=auto gemm_plugin=None
gemm_swiglu_plugin=None fp8_rowwise_gemm_plugin=None qserve_gemm_plugin=None identity_plugin=None
nccl_plugin=auto lora_plugin=None dora_plugin=False weight_only_groupwise_quant_matmul_plugin=None
weight_only_quant_matmul_plugin=None smooth_quant_plugins=True smooth_quant_gemm_plugin=None
layernorm_quantization_plugin=None rmsnorm_quantization_plugin=None quantize_per_token_plugin=False
quantize_tensor_plugin=False moe_plugin=auto mamba_conv1d_plugin=auto low_latency_gemm_plugin=None
low_latency_gemm_swiglu_plugin=None gemm_allreduce_plugin=None context_fmha=True
bert_context_fmha_fp32_acc=False paged_kv_cache=None remove_input_padding=True
norm_quant_fusion=False reduce_fusion=False user_buffer=False tokens_per_block=32
use_paged_context_fmha=True use_fp8_context_fmha=True fuse_fp4_quant=False multiple_profiles=False
paged_state=True streamingllm=False manage_weights=False use_fused_mlp=True pp_reduce_scatter=False
"""
"""Fields of PluginConfig and their defaults, read in NVIDIA/TensorRT-LLM c20322ff (pydantic, 1.2)
and in the last dataclass before it, tensorrt_llm/plugin/plugin.py."""

CLI_PLUGIN_ARGS = """
bert_attention_plugin gpt_attention_plugin gemm_plugin gemm_swiglu_plugin fp8_rowwise_gemm_plugin
lora_plugin dora_plugin moe_plugin mamba_conv1d_plugin nccl_plugin low_latency_gemm_plugin
low_latency_gemm_swiglu_plugin gemm_allreduce_plugin context_fmha bert_context_fmha_fp32_acc
remove_input_padding tokens_per_block use_paged_context_fmha use_fp8_context_fmha fuse_fp4_quant
multiple_profiles paged_state streamingllm norm_quant_fusion reduce_fusion user_buffer use_fused_mlp
pp_reduce_scatter
"""
"""Those of them that trtllm-build has flags for, ibid."""


def test_the_ops_have_all_of_plugin_config() -> None:
    found = {f"{name}={option.default}" for name, option in PLUGIN_OPTIONS.items()}
    assert found == {*PLUGIN_CONFIG.split()}
    flags = {name for name, option in PLUGIN_OPTIONS.items() if option.flag}
    assert flags == {*CLI_PLUGIN_ARGS.split()}


NOT_OURS = (
    "bert_attention_plugin bert_context_fmha_fp32_acc mamba_conv1d_plugin paged_state".split()
)
"""Flags for what llmc does not build: encoders and Mamba."""


def test_build_plugins_sets_every_option_and_no_other_value() -> None:
    flags = {name for name, option in PLUGIN_OPTIONS.items() if option.flag}
    assert PluginRecipe.model_fields.keys() == flags - {*NOT_OURS} | {"manage_weights"}
    for name, field in PluginRecipe.model_fields.items():
        option = PLUGIN_OPTIONS[name]
        said = {value for part in get_args(field.annotation) for value in get_args(part) or [part]}
        if name == "tokens_per_block":
            assert all(isinstance(value, int) for value in said)
        elif option.values:
            assert said - {type(None)} <= {*option.values}, name
        else:
            assert said - {type(None)} == {bool}, name
