"""Every key of a checkpoint's config.json: type, default, and the architectures that have it.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/modeling_utils.py (QuantConfig,
PretrainedConfig) and models/*/config.py; the same keys through 1.2. Of what came later: 1.x
models/qwen/config.py (Qwen3), models/gemma/config.py (Gemma 3), models/llama/config.py (Granite).
`parse` reads a config.json the way the loader does, but takes an unknown key for the mistake it
usually is.
"""

from dataclasses import dataclass
from typing import Any

from llmc.tensorrt_llm_versions import VERSIONS

REQUIRED = object()
"""Default of a key that the loader fails without."""

_Table = dict[str, tuple[str, object]]

COMMON: _Table = {
    "architecture": ("str", REQUIRED),
    "dtype": ("str", REQUIRED),
    "logits_dtype": ("str", "float32"),
    "vocab_size": ("int", REQUIRED),
    "hidden_size": ("int", REQUIRED),
    "num_hidden_layers": ("int", REQUIRED),
    "num_attention_heads": ("int", REQUIRED),
    "num_key_value_heads": ("int?", None),
    "head_size": ("int?", None),
    "intermediate_size": ("int?", None),
    "hidden_act": ("str", "gelu"),
    "norm_epsilon": ("float", 1e-5),
    "max_position_embeddings": ("int?", None),
    "position_embedding_type": ("str", "learned_absolute"),
    "rotary_embedding_dim": ("int?", None),
    "qk_layernorm": ("bool", False),
    "use_parallel_embedding": ("bool", False),
    "embedding_sharding_dim": ("int", 0),
    "runtime_defaults": ("dict?", None),
    "tie_word_embeddings": ("bool", False),
    "llmc": ("dict?", None),
}
"""Keys of every architecture; "llmc" is ours, which the loader takes with a warning."""

MAPPING: _Table = {
    "world_size": ("int", REQUIRED),
    "tp_size": ("int", 1),
    "pp_size": ("int", 1),
    "cp_size": ("int", 1),
    "moe_tp_size": ("int?", None),
    "moe_ep_size": ("int?", None),
    "gpus_per_node": ("int", 8),
}

QUANTIZATION: _Table = {
    "quant_algo": ("str?", None),
    "kv_cache_quant_algo": ("str?", None),
    "group_size": ("int", 128),
    "smoothquant_val": ("float?", 0.5),
    "clamp_val": ("list?", None),
    "use_meta_recipe": ("bool", False),
    "has_zero_point": ("bool", False),
    "pre_quant_scale": ("bool", False),
    "exclude_modules": ("list?", None),
}

MOE: _Table = {
    "num_experts": ("int", 0),
    "shared_expert_intermediate_size": ("int", 0),
    "top_k": ("int", 0),
    "normalization_mode": ("int?", None),
    "sparse_mixer_epsilon": ("float", 0.01),
    "tp_mode": ("int", 0),
    "device_limited_n_group": ("int", 0),
    "device_limited_topk_group": ("int", 0),
    "device_limited_routed_scaling_factor": ("float", 1.0),
}

_ROPE: _Table = {"rotary_base": ("float", 10000.0), "rotary_scaling": ("dict?", None)}
_BIASES: _Table = {"attn_bias": ("bool", False), "mlp_bias": ("bool", False)}
_PLUGIN: _Table = {"disable_weight_only_quant_plugin": ("bool", False)}
_ON_CPU: _Table = {"load_model_on_cpu": ("bool", False)}
_LLAMA: _Table = {
    **_ROPE,
    **_BIASES,
    **_PLUGIN,
    **_ON_CPU,
    "residual_mlp": ("bool", False),
    "moe": ("dict?", None),
    "quant_ckpt_path": ("str?", None),
    "remove_duplicated_kv_heads": ("bool", False),
    "fc_after_embed": ("bool", False),
    "use_input_layernorm_in_first_layer": ("bool", True),
    "use_last_layernorm": ("bool", True),
    "layer_idx_offset": ("int", 0),
}
_QWEN: _Table = {
    **_ROPE,
    **_BIASES,
    **_PLUGIN,
    "use_logn_attn": ("bool", False),
    "moe": ("dict?", None),
    "moe_intermediate_size": ("int", 0),
    "moe_shared_expert_intermediate_size": ("int", 0),
    "qwen_type": ("str", "qwen2"),
    "seq_length": ("int", 8192),
    "num_labels": ("int", 1),
}
_GEMMA: _Table = {**_ROPE, **_BIASES, "inter_layernorms": ("bool", False)}
_GEMMA2: _Table = {
    **_GEMMA,
    "query_pre_attn_scalar": ("int", REQUIRED),
    "final_logit_softcapping": ("float?", None),
    "attn_logit_softcapping": ("float?", None),
}
_GPT: _Table = {
    **_ROPE,
    "gpt_variant": ("str", "gpt2"),
    "bias": ("bool", True),
    "q_scaling": ("float", 1.0),
    "embedding_scale": ("float?", None),
    "apply_query_key_layer_scaling": ("bool", False),
    "rotary_pct": ("float", 1.0),
    "inner_layernorm": ("bool", False),
    "norm_before_bmm1": ("bool", False),
    "moe": ("dict?", None),
}

FAMILIES: dict[str, _Table] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MixtralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _QWEN,
    "Qwen2MoeForCausalLM": _QWEN,
    "Qwen3ForCausalLM": _QWEN,
    "Qwen3MoeForCausalLM": _QWEN,
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": {
        **_GEMMA2,
        "_sliding_window_pattern": ("int?", None),
        "rope_local_base_freq": ("float?", None),
        "sliding_window": ("int?", None),
    },
    "GraniteForCausalLM": {
        **_LLAMA,
        "embedding_multiplier": ("float", 1.0),
        "attention_multiplier": ("float", 1.0),
        "residual_multiplier": ("float", 1.0),
        "output_multiplier_scale": ("float", 1.0),
    },
    "PhiForCausalLM": {
        **_ROPE,
        "rotary_pct": ("float", 1.0),
        "partial_rotary_factor": ("float", 1.0),
    },
    "Phi3ForCausalLM": _ROPE,
    "GPT2LMHeadModel": _GPT,
    "GPTBigCodeForCausalLM": _GPT,
    "GPTJForCausalLM": {"rotary_dim": ("int", 64)},
    "Starcoder2ForCausalLM": _GPT,
    "GPTNeoXForCausalLM": {"rotary_emb_base": ("float", 10000), "rotary_pct": ("float", 1.0)},
    "FalconForCausalLM": {
        "rotary_base": ("float", 10000.0),
        "bias": ("bool", True),
        "parallel_attention": ("bool", False),
        "num_ln_in_parallel_attn": ("int?", None),
        "new_decoder_architecture": ("bool", False),
    },
    "OPTForCausalLM": {"do_layer_norm_before": ("bool", True)},
    "MptForCausalLM": {
        "clip_qkv": ("float?", None),
        "alibi_bias_max": ("int", 8),
        "bias": ("bool", False),
    },
    "BloomForCausalLM": {},
    "CohereForCausalLM": {
        "rotary_base": ("float", 10000.0),
        "attn_bias": ("bool", False),
        **_PLUGIN,
        **_ON_CPU,
        "output_multiplier_scale": ("float", 0.0625),
    },
}
"""Architecture → the keys that are its own."""

MODELOPT: _Table = {
    "producer": ("dict", {}),
    "bias": ("bool", False),
    "decoder": ("str", ""),
    "lm_head_bias": ("bool", False),
    "model_type": ("str", ""),
    "rank": ("int", 0),
    "residual_mlp": ("bool", False),
    "rmsnorm": ("bool", True),
    "rotary_pct": ("float", 1.0),
    "share_embedding_table": ("bool", False),
}
"""What ModelOpt's exporter adds; "producer" says that it wrote the checkpoint."""

PARTS: dict[str, _Table] = {"mapping": MAPPING, "quantization": QUANTIZATION, "moe": MOE}
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "list": (list,),
    "dict": (dict,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A config.json with every default filled in, and what is wrong with it."""

    values: dict[str, Any]
    problems: tuple[str, ...]


def parse(config: dict[str, Any], line: str) -> Parsed:
    """Read config.json by the tables of TensorRT-LLM `line`."""
    if not VERSIONS[line].has_engines:
        problem = f"TensorRT-LLM {line} reads Hugging Face checkpoints, not config.json with ranks"
        return Parsed(values={}, problems=(problem,))
    architecture = config.get("architecture")
    if architecture not in FAMILIES:
        problem = f"architecture: {architecture!r}, its keys are not known"
        return Parsed(values={}, problems=(problem,))
    table = COMMON | FAMILIES[architecture]
    if "producer" in config:
        table = MODELOPT | table
    problems: list[str] = []
    top = {key: value for key, value in config.items() if key not in PARTS or value is None}
    own = {key: kind for key, kind in table.items() if key not in PARTS}
    values = _read(top, own, "", problems)
    for name, part in PARTS.items():
        if name == "moe" and name not in table and name not in config:
            continue
        if name == "moe" and name not in table:
            problems.append(f"{name}: unknown key")
        found = config.get(name, {})
        if not isinstance(found, dict):
            problems.append(f"{name}: {found!r}, expected an object")
            continue
        values[name] = _read(found, _part_of(part, found, name), f"{name}.", problems)
    return Parsed(values=values, problems=tuple(problems))


def _part_of(part: _Table, found: dict[str, Any], name: str) -> _Table:
    """Return the part's table; a configuration without ranks may leave its world_size out."""
    if name == "mapping" and not found:
        return {**part, "world_size": ("int", 1)}
    return part


def _read(found: dict[str, Any], table: _Table, prefix: str, problems: list[str]) -> dict[str, Any]:
    values = {}
    for key, value in found.items():
        if key not in table:
            problems.append(f"{prefix}{key}: unknown key")
        elif not _fits(value, table[key][0]):
            problems.append(f"{prefix}{key}: {value!r}, expected {table[key][0]}")
    for key, (_, default) in table.items():
        if key not in found and default is REQUIRED:
            problems.append(f"{prefix}{key}: missing")
        values[key] = found.get(key, default)
    return values


def _fits(value: object, kind: str) -> bool:
    if value is None:
        return kind.endswith("?")
    name = kind.rstrip("?")
    # A flag is an int to Python, and no number here.
    return isinstance(value, _KINDS[name]) and isinstance(value, bool) == (name == "bool")
