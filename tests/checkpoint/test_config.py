import json
from dataclasses import replace
from typing import Any

import pytest

from llmc.arch import MlaArch, ModelArch, MoeArch
from llmc.checkpoint import CheckpointConfig, Quantization
from llmc.errors import CheckpointError
from llmc.mapping import Mapping

ARCH = ModelArch(
    architecture="LlamaForCausalLM",
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_size=16,
    intermediate_size=96,
    vocab_size=101,
    max_position_embeddings=128,
    rotary_embedding_dim=16,
)
CONFIG = CheckpointConfig(
    arch=replace(
        ARCH,
        rotary_scaling={"rope_type": "linear", "factor": 2.0},
        sliding_window=32,
        family_settings={"residual_mlp": False},
    ),
    dtype="bfloat16",
    mapping=Mapping(tp_size=2, pp_size=2),
    quantization=Quantization(
        quant_algo="W8A16", clamp_val=(-1.0, 1.0), exclude_modules=("lm_head",)
    ),
    use_parallel_embedding=True,
    embedding_sharding_dim=1,
)


def test_what_is_written_is_read() -> None:
    assert CheckpointConfig.from_json(CONFIG.to_json()) == CONFIG


def test_what_tensorrt_llm_has_no_key_for_is_apart() -> None:
    data = CONFIG.to_json()
    assert data["llmc"] == {"arch": {"sliding_window": 32}}
    assert "llmc" not in CheckpointConfig(arch=ARCH, dtype="float16").to_json()


def test_every_field_of_an_architecture_reads_back() -> None:
    moe = MoeArch(num_experts=8, top_k=2, intermediate_size=64, dense_layers=(0,), swiglu_limit=7.0)
    mla = MlaArch(
        q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8
    )
    arch = replace(
        ARCH,
        architecture="DeepseekV3ForCausalLM",
        norm_placement="sandwich",
        qk_norm="full",
        embedding_scale=11.3,
        layer_windows=(None, 16),
        layer_ropes=("none", "local"),
        rotary_base_local=10.0,
        moe=moe,
        mla=mla,
        family_settings={"bias": None},
        left_out=("mapping.cp_size", "mlp_bias", "quantization.group_size", "rotary_base"),
    )
    config = replace(CONFIG, arch=arch)
    data = json.loads(json.dumps(config.to_json()))
    assert CheckpointConfig.from_json(data) == config
    assert "mlp_bias" not in data and "cp_size" not in data["mapping"]
    # What is not at its default is said all the same.
    quantization = replace(config.quantization, group_size=64)
    grouped = replace(config, quantization=quantization).to_json()
    assert grouped["quantization"]["group_size"] == 64
    assert CheckpointConfig.from_json(grouped).arch == arch


def test_the_layout_of_packed_weights_is_kept() -> None:
    packed = replace(CONFIG, layout="sm90")
    assert packed.to_json()["llmc"] == {"arch": {"sliding_window": 32}, "layout": "sm90"}
    assert CheckpointConfig.from_json(packed.to_json()) == packed


def test_weight_only_modules_are_stored_plain_without_a_layout() -> None:
    module = "transformer.layers.0.mlp.fc"
    assert CONFIG.stored_format(module) is None
    assert CONFIG.linear_tensors(module) == {"weight": f"{module}.weight"}
    packed = replace(CONFIG, layout="sm90")
    assert packed.linear_tensors(module) == {
        "weight": f"{module}.weight",
        "per_channel_scale": f"{module}.per_channel_scale",
    }
    assert packed.linear_tensors("lm_head") == {"weight": "lm_head.weight"}


def test_absent_keys_have_tensorrt_llms_defaults() -> None:
    config = CheckpointConfig.from_json(
        {
            "architecture": "LlamaForCausalLM",
            "dtype": "float16",
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": 101,
            "max_position_embeddings": 128,
        }
    )
    assert config.arch.num_key_value_heads == 4
    assert config.arch.head_size == 16
    assert config.arch.intermediate_size == 256
    assert config.arch.position_embedding_type == "learned_absolute"
    assert config.quantization == Quantization() and config.mapping == Mapping()


def test_other_keys_are_kept_for_the_family_to_judge() -> None:
    config = CheckpointConfig.from_json(CONFIG.to_json() | {"producer": {}, "residual_mlp": True})
    assert config.arch.family_settings == {"residual_mlp": True}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": None}, "hidden_size: None, expected int"),
    ({"hidden_size": "64"}, "hidden_size: '64', expected int"),
    ({"hidden_size": True}, "hidden_size: True, expected int"),
    ({"num_hidden_layers": 0}, "num_hidden_layers: 0, expected at least 1"),
    ({"max_position_embeddings": None}, "max_position_embeddings: None, expected int"),
    ({"dtype": "int8"}, "dtype: 'int8', expected one of float32"),
    ({"attn_bias": 1}, "attn_bias: 1, expected bool"),
    ({"rotary_scaling": []}, "rotary_scaling: [], expected dict or NoneType"),
    ({"runtime_defaults": {}}, "runtime_defaults: {}, expected None"),
    ({"llmc": {"arch": []}}, "arch: [], expected dict or NoneType"),
    ({"llmc": {"arch": {"windows": 1}}}, "llmc.arch.windows: unknown key"),
    ({"llmc": {"arch": {"norm_bias": 1}}}, "llmc.arch.norm_bias: 1, expected bool"),
    ({"llmc": {"arch": {"mlp_type": "x"}}}, "llmc.arch.mlp_type: 'x', expected gated or "),
    ({"llmc": {"arch": {"layer_windows": [1.5]}}}, "llmc.arch.layer_windows: 1.5, expected int"),
    ({"llmc": {"arch": {"moe": {"top_k": 2}}}}, "llmc.arch.moe: MoeArch.__init__() missing"),
    ({"architecture": "XForCausalLM", "llmc": {}}, "llmc.arch: missing; XForCausalLM is more than"),
    ({"embedding_sharding_dim": 2}, "embedding_sharding_dim: 2, expected 0 or 1"),
    ({"quantization": {"quant_algorithm": "W8A16"}}, "quantization.quant_algorithm: unknown key"),
    ({"quantization": []}, "quantization: [], expected dict"),
    ({"quantization": {"quant_algo": "FP7"}}, "quantization.quant_algo: 'FP7', expected one of"),
    ({"llmc": {"layout": 80}}, "layout: 80, expected str or NoneType"),
    ({"llmc": {"layout": "sm70"}}, "layout: 'sm70', expected one of sm80"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_value_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        CheckpointConfig.from_json(CONFIG.to_json() | change)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("key", ["architecture", "dtype", "vocab_size"])
def test_a_missing_key_is_named(key: str) -> None:
    data = CONFIG.to_json()
    del data[key]
    with pytest.raises(CheckpointError, match=f"^{key}: missing$"):
        CheckpointConfig.from_json(data)


@pytest.mark.parametrize(
    ("exclude", "module", "quantized"),
    [
        (None, "transformer.layers.0.attention.qkv", True),
        (None, "lm_head", False),
        (None, "transformer.layers.0.mlp.router", False),
        ((), "lm_head", True),
        ((), "transformer.vocab_embedding", False),
        (("*.attention.*",), "transformer.layers.0.attention.qkv", False),
        (("*.attention.*",), "transformer.layers.0.mlp.fc", True),
    ],
)
def test_which_modules_are_quantized(
    exclude: tuple[str, ...] | None, module: str, quantized: bool
) -> None:
    assert Quantization(quant_algo="W8A16", exclude_modules=exclude).quantizes(module) is quantized


def test_nothing_is_quantized_without_an_algorithm() -> None:
    assert not Quantization().quantizes("transformer.layers.0.mlp.fc")


@pytest.mark.parametrize(("tp_size", "padded"), [(1, 101), (2, 102), (4, 104)])
def test_the_vocabulary_is_padded_to_the_ranks(tp_size: int, padded: int) -> None:
    config = CheckpointConfig(arch=ARCH, dtype="float16", mapping=Mapping(tp_size=tp_size))
    assert config.padded_vocab_size == padded
