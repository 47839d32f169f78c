"""Every no has a reason, and what TensorRT-LLM builds is allowed."""

from dataclasses import replace
from typing import Any

import pytest

from llmc.arch import ModelArch, MoeArch
from llmc.checkpoint import CheckpointConfig, Quantization, forbidden, unsplittable
from llmc.mapping import Mapping
from llmc.quant import FORMATS
from llmc.quant.format import load_format

ARCH = ModelArch(
    architecture="LlamaForCausalLM",
    hidden_size=512,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_size=64,
    intermediate_size=1536,
    vocab_size=1000,
    max_position_embeddings=128,
    rotary_embedding_dim=64,
)
SMALL = replace(
    ARCH,
    hidden_size=576,
    num_attention_heads=9,
    num_key_value_heads=3,
)
"""The sizes of SmolLM2-135M: 576 is no multiple of 128."""


def config(algo: str, kv: str | None = None, **changes: Any) -> CheckpointConfig:
    form = load_format(algo)
    layout = "sm80" if form.needs_layout and form.in_checkpoint == "quantized" else None
    made = CheckpointConfig(
        arch=ARCH, dtype="float16", quantization=Quantization.of(algo, kv), layout=layout
    )
    return replace(made, **changes)


def quantization(algo: str, **changes: Any) -> dict[str, Any]:
    return {"quantization": replace(Quantization.of(algo), **changes)}


@pytest.mark.parametrize("kv", [None, "INT8", "FP8"])
@pytest.mark.parametrize("algo", FORMATS)
def test_what_tensorrt_llm_builds_is_allowed(algo: str, kv: str | None) -> None:
    reasons = forbidden(config(algo, kv)) + unsplittable(config(algo, kv))
    if (algo, kv) == ("NVFP4", "INT8"):
        assert reasons == ["NVFP4 with an INT8 KV cache: TensorRT-LLM knows FP8 only beside NVFP4"]
    else:
        assert not reasons


@pytest.mark.parametrize("algo", FORMATS)
def test_a_model_of_576_columns(algo: str) -> None:
    form = load_format(algo)
    chosen = config(algo, arch=SMALL)
    if 64 in form.group_sizes:
        hint = "; group_size 64 may fit"
        assert any(reason.endswith(hint) for reason in forbidden(chosen)) or unsplittable(chosen)
        smaller = replace(chosen.quantization, group_size=64)
        chosen = replace(chosen, quantization=smaller)
    reasons = forbidden(chosen) + unsplittable(chosen)
    assert bool(reasons) == (algo == "W4A8_AWQ"), reasons


EXPERTS = replace(ARCH, moe=MoeArch(num_experts=8, top_k=2, intermediate_size=1536))
CASES: list[tuple[CheckpointConfig, str]] = [
    (config("W4A16_AWQ", **quantization("W4A16_AWQ", group_size=32)), "group_size 32, expected 64"),
    (config("W4A8_AWQ", **quantization("W4A8_AWQ", group_size=64)), "group_size 64, expected 128"),
    (
        config("W4A16_AWQ", **quantization("W4A16_AWQ", pre_quant_scale=False)),
        "pre_quant_scale False, expected True",
    ),
    (config("W4A16_GPTQ", dtype="float32"), "dtype float32, expected float16 or bfloat16"),
    (config("W8A16", dtype="float32", layout="sm90"), "dtype float32, expected"),
    (config("W4A16_GPTQ", layout=None), "no portable form: name a layout, one of sm80"),
    (config("FP8", layout="sm80"), "FP8 is the same for every GPU"),
    (config("W8A16", layout="sm100"), "layout 'sm100', expected one of sm80"),
    (config("FP8", **quantization("FP8", exclude_modules=())), "lm_head stays as it is"),
    (
        config(
            "W8A8_SQ_PER_TENSOR_PLUGIN",
            **quantization("W8A8_SQ_PER_TENSOR_PLUGIN", exclude_modules=("lm_head", "*.1.mlp.fc")),
        ),
        "exclude_modules leaves out transformer.layers.1.mlp.fc",
    ),
    (config("FP8_PER_CHANNEL_PER_TOKEN", arch=EXPERTS), "with experts: TensorRT-LLM reads W8A16"),
    (config("NVFP4", arch=EXPERTS), "NVFP4 with experts: TensorRT-LLM reads W8A16"),
    (config("FP8", **quantization("FP8", use_meta_recipe=True)), "use_meta_recipe True"),
    (config("FP8", **quantization("FP8", clamp_val=(-1.0, 2.0))), "clamp_val [-1.0, 2.0]"),
    (config("FP8", **quantization("FP8", kv_cache_quant_algo="NVFP4")), "expected one of INT8"),
    (config("FP8", **quantization("FP8", quant_algo="FP7")), "quant_algo 'FP7', expected one of"),
    (
        config("W4A16", layout="sm80", mapping=Mapping(tp_size=8), arch=replace(ARCH, head_size=8)),
        "attention.qkv: 24 rows per rank at tp_size 8, expected a multiple of 64",
    ),
]


@pytest.mark.parametrize(("chosen", "reason"), CASES, ids=[reason[:40] for _, reason in CASES])
def test_what_it_does_not_is_refused(chosen: CheckpointConfig, reason: str) -> None:
    assert any(reason in found for found in forbidden(chosen)), forbidden(chosen)


@pytest.mark.parametrize("algo", ["W8A16", "W4A16", "FP8"])
def test_experts_have_their_formats(algo: str) -> None:
    assert not forbidden(config(algo, arch=EXPERTS))


def test_groups_must_be_whole_after_the_split() -> None:
    chosen = config("W4A16_AWQ", mapping=Mapping(tp_size=8))
    assert unsplittable(chosen) == [
        "transformer.layers.0.attention.dense: tp_size 8 splits 512 columns into parts that are not"
        " multiples of 128, as weights_scaling_factor of W4A16_AWQ needs",
        "transformer.layers.0.mlp.proj: tp_size 8 splits 1536 columns into parts that are not"
        " multiples of 128, as weights_scaling_factor of W4A16_AWQ needs",
    ]
    assert unsplittable(config("NVFP4", mapping=Mapping(tp_size=8))) == []


def test_nothing_is_forbidden_where_nothing_is_quantized() -> None:
    assert forbidden(CheckpointConfig(arch=ARCH, dtype="float32")) == []
