"""Check model.yaml of a model of the LLM API: what TensorRT-LLM would only refuse on a GPU.

Source: NVIDIA/TensorRT-LLM 1.3.0rc, tensorrt_llm/llmapi/llm_args.py: BaseLlmArgs and TorchLlmArgs,
which refuse a key they do not have; triton_backend/all_models/llmapi/tensorrt_llm/1/model.py for
`triton_config`.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

LLM_ARGS = frozenset(
    {
        *("model", "tokenizer", "tokenizer_mode", "custom_tokenizer", "skip_tokenizer_init"),
        *("trust_remote_code", "tensor_parallel_size", "dtype", "revision", "tokenizer_revision"),
        *("model_kwargs", "pipeline_parallel_size", "context_parallel_size", "gpus_per_node"),
        *("moe_cluster_parallel_size", "moe_tensor_parallel_size", "moe_expert_parallel_size"),
        *("enable_attention_dp", "enable_lm_head_tp_in_adp", "pp_partition", "cp_config"),
        *("load_format", "enable_lora", "lora_config", "kv_cache_config"),
        *("enable_chunked_prefill", "guided_decoding_backend", "batched_logits_processor"),
        *("iter_stats_max_iterations", "request_stats_max_iterations", "peft_cache_config"),
        *("scheduler_config", "cache_transceiver_config", "sparse_attention_config"),
        *("speculative_config", "max_batch_size", "max_input_len", "max_seq_len"),
        *("max_beam_width", "max_num_tokens", "gather_generation_logits"),
        *("num_postprocess_workers", "postprocess_tokenizer_dir", "reasoning_parser"),
        *("decoding_config", "otlp_traces_endpoint", "backend", "return_perf_metrics"),
        *("perf_metrics_max_requests", "orchestrator_type", "env_overrides"),
        *("garbage_collection_gen0_threshold", "cuda_graph_config", "attention_dp_config"),
        *("disable_overlap_scheduler", "moe_config", "nvfp4_gemm_config", "attn_backend"),
        *("sampler_type", "sampler_force_async_worker", "enable_iter_perf_stats"),
        *("enable_iter_req_stats", "print_iter_log", "batch_wait_timeout_ms"),
        *("batch_wait_timeout_iters", "batch_wait_max_tokens_ratio", "torch_compile_config"),
        *("enable_autotuner", "enable_layerwise_nvtx_marker", "enable_min_latency"),
        *("stream_interval", "force_dynamic_quantization", "allreduce_strategy"),
        *("checkpoint_loader", "checkpoint_format", "kv_connector_config", "mm_encoder_only"),
        *("ray_worker_extension_cls", "ray_placement_config", "enable_sleep"),
        *("use_cute_dsl_blockscaling_mm", "use_cute_dsl_blockscaling_bmm"),
        *("disable_flashinfer_sampling", "max_stats_len", "layer_wise_benchmarks_config"),
    }
)
"""What tensorrt_llm.LLM takes with the PyTorch backend."""

SETTINGS_FILE = "model.yaml"

NOT_ITS = frozenset({"triton_config", "logits_post_processors"})
"""Keys of model.yaml that are the Triton model's."""

SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "max_batch_size", "max_num_tokens")


def check_llmapi(config: Any, file: Path, *, elsewhere: bool) -> Iterator[str]:
    """Yield what is wrong with the model.yaml in `file`, alone and beside its config.pbtxt."""
    where = f"{file.parent.name}/{file.name}"
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        yield f"{where}: {' '.join(str(error).split())}"
        return
    if not isinstance(found, dict):
        yield f"{where}: expected arguments of tensorrt_llm.LLM"
        return
    for key in sorted(map(str, found.keys() - LLM_ARGS - NOT_ITS)):
        close = get_close_matches(key, LLM_ARGS, n=1)
        meant = f", did you mean {close[0]!r}?" if close else ""
        yield f"{where}: {key}: unknown to tensorrt_llm.LLM{meant}"
    yield from _check_values(where, found, elsewhere=elsewhere)
    own = found.get("triton_config")
    if not isinstance(own, dict) or not {"max_batch_size", "decoupled"} <= own.keys():
        yield f"{where}: triton_config: expected max_batch_size and decoupled"
        return
    if own["max_batch_size"]:
        yield f"{where}: triton_config.max_batch_size: {own['max_batch_size']}, expected 0"
    given = config.HasField("model_transaction_policy")
    if given and bool(own["decoupled"]) != config.model_transaction_policy.decoupled:
        yield f"{where}: triton_config.decoupled: {own['decoupled']}, config.pbtxt says the other"


def _check_values(where: str, found: dict[str, Any], *, elsewhere: bool) -> Iterator[str]:
    model = found.get("model")
    if not isinstance(model, str) or not model:
        yield f"{where}: model: {model!r}, expected a directory or a hub's name"
    elif Path(model).is_absolute() and not elsewhere and not Path(model).exists():
        yield f"{where}: model: {model!r} does not exist here"
    if found.get("backend", "pytorch") != "pytorch":
        yield f"{where}: backend: {found['backend']!r}, expected 'pytorch'"
    for key in SIZES:
        size = found.get(key, 1)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            yield f"{where}: {key}: {size!r}, expected a whole number, at least 1"
    tp = found.get("tensor_parallel_size", 1)
    moe_tp, moe_ep = (found.get(f"moe_{axis}_parallel_size") for axis in ("tensor", "expert"))
    if isinstance(moe_tp, int) and isinstance(moe_ep, int) and moe_tp * moe_ep != tp:
        yield (
            f"{where}: moe_tensor_parallel_size {moe_tp} * moe_expert_parallel_size {moe_ep} is not"
            f" tensor_parallel_size {tp}"
        )
