"""Options of trtllm-build with their defaults: BuildConfig and PluginConfig.

The same for every line with engines, but auto_parallel_config, which BuildConfig has up to 1.1 (it
went with pull request 8329) and llmc leaves at its default. PluginConfig is the ops'
(plugins/*/tensorrt_llm.py).
Source: NVIDIA/TensorRT-LLM tensorrt_llm/builder.py (BuildConfig), tensorrt_llm/commands/build.py.
"""

from llmc.plugins.tensorrt_llm_options import Option, Value, plugin_options


def _set(default: Value, *values: str, flag: bool = True) -> Option:
    return Option(default=default, values=values, flag=flag)


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

PLUGIN_OPTIONS = plugin_options()
"""PluginConfig. "auto" is the checkpoint's dtype, None off."""
