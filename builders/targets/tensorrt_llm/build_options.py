"""Options of trtllm-build with their defaults: BuildConfig and PluginConfig.

The same for every line with engines: the fields and defaults of both forms of plugin.py, dataclass
and pydantic, are equal.
Source: tensorrt_llm/builder.py (BuildConfig), tensorrt_llm/plugin/plugin.py (PluginConfig,
cli_plugin_args) and tensorrt_llm/commands/build.py.
"""

from dataclasses import dataclass

Value = bool | int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. `values`: what it takes beside its default; `flag`: trtllm-build has it."""

    default: Value
    values: tuple[str, ...] = ()
    flag: bool = True


def _set(default: Value, *values: str, flag: bool = True) -> Option:
    return Option(default=default, values=values, flag=flag)


_DTYPES = ("auto", "float16", "float32", "bfloat16", "int32", "none")

BUILD_OPTIONS: dict[str, Option] = {
    "max_input_len": _set(1024),
    "max_seq_len": _set(None),
    "opt_batch_size": _set(8, flag=False),
    "max_batch_size": _set(2048),
    "max_beam_width": _set(1),
    "max_num_tokens": _set(8192),
    "opt_num_tokens": _set(None),
    "max_prompt_embedding_table_size": _set(0),
    "kv_cache_type": _set(None, "continuous", "paged", "disabled"),
    "gather_context_logits": _set(False),
    "gather_generation_logits": _set(False),
    "strongly_typed": _set(True, flag=False),
    "force_num_profiles": _set(None, flag=False),
    "profiling_verbosity": _set("layer_names_only", "layer_names_only", "detailed", "none"),
    "enable_debug_output": _set(False),
    "max_draft_len": _set(0),
    "speculative_decoding_mode": _set(
        *(None, "draft_tokens_external", "lookahead_decoding", "medusa"),
        *("explicit_draft_tokens", "eagle"),
    ),
    "use_refit": _set(False, flag=False),
    "input_timing_cache": _set(None),
    "output_timing_cache": _set("model.cache"),
    "weight_sparsity": _set(False),
    "weight_streaming": _set(False),
    "use_strip_plan": _set(False),
    "max_encoder_input_len": _set(1024),
    "dry_run": _set(False),
    "visualize_network": _set(None),
    "monitor_memory": _set(False),
    "use_mrope": _set(False, flag=False),
}
"""BuildConfig but its lora_config and plugin_config."""

PLUGIN_OPTIONS: dict[str, Option] = {
    "dtype": _set("float16", flag=False),
    "bert_attention_plugin": _set("auto", *_DTYPES),
    "gpt_attention_plugin": _set("auto", *_DTYPES),
    "gemm_plugin": _set(None, *_DTYPES, "fp8", "nvfp4"),
    "gemm_swiglu_plugin": _set(None, "fp8", "none"),
    "fp8_rowwise_gemm_plugin": _set(None, *_DTYPES),
    "qserve_gemm_plugin": _set(None, *_DTYPES, flag=False),
    "identity_plugin": _set(None, *_DTYPES, flag=False),
    "nccl_plugin": _set("auto", *_DTYPES),
    "lora_plugin": _set(None, *_DTYPES),
    "dora_plugin": _set(False),
    "weight_only_groupwise_quant_matmul_plugin": _set(None, *_DTYPES, flag=False),
    "weight_only_quant_matmul_plugin": _set(None, *_DTYPES, flag=False),
    "smooth_quant_plugins": _set(True, flag=False),
    "smooth_quant_gemm_plugin": _set(None, *_DTYPES, flag=False),
    "layernorm_quantization_plugin": _set(None, *_DTYPES, flag=False),
    "rmsnorm_quantization_plugin": _set(None, *_DTYPES, flag=False),
    "quantize_per_token_plugin": _set(False, flag=False),
    "quantize_tensor_plugin": _set(False, flag=False),
    "moe_plugin": _set("auto", *_DTYPES),
    "mamba_conv1d_plugin": _set("auto", *_DTYPES),
    "low_latency_gemm_plugin": _set(None, "fp8", "none"),
    "low_latency_gemm_swiglu_plugin": _set(None, "fp8", "none"),
    "gemm_allreduce_plugin": _set(None, "float16", "bfloat16", "none"),
    "context_fmha": _set(True),
    "bert_context_fmha_fp32_acc": _set(False),
    "paged_kv_cache": _set(None, flag=False),
    "remove_input_padding": _set(True),
    "norm_quant_fusion": _set(False),
    "reduce_fusion": _set(False),
    "user_buffer": _set(False),
    "tokens_per_block": _set(32),
    "use_paged_context_fmha": _set(True),
    "use_fp8_context_fmha": _set(True),
    "fuse_fp4_quant": _set(False),
    "multiple_profiles": _set(False),
    "paged_state": _set(True),
    "streamingllm": _set(False),
    "manage_weights": _set(False, flag=False),
    "use_fused_mlp": _set(True),
    "pp_reduce_scatter": _set(False),
}
"""PluginConfig. "auto" is the checkpoint's dtype, None off."""
