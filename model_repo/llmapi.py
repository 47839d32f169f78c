"""The repository of NVIDIA's `llmapi` layout: one model, by TensorRT-LLM's LLM API (1.3 and later).

config.pbtxt has the text tensors of NVIDIA's, model.yaml the arguments of tensorrt_llm.LLM. The
model.py that is written beside them is llmc's own; NVIDIA's reads the same files.

Source: NVIDIA/TensorRT-LLM 1.3.0rc, triton_backend/all_models/llmapi, and
tensorrt_llm/llmapi/llm_args.py (BaseLlmArgs, TorchLlmArgs, KvCacheConfig, SchedulerConfig).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llmc.errors import UnsupportedError
from llmc.model_repo.options import RepositoryOptions
from llmc.model_repo.specs import ModelSpec, TensorSpec

SERVE_FIELDS = frozenset(
    {
        *("max_attention_window_size", "sink_token_length", "kv_cache_host_memory_bytes"),
        *("kv_cache_onboard_blocks", "max_beam_width", "guided_decoding_backend"),
        *("iter_stats_max_iterations", "request_stats_max_iterations"),
    }
)
"""Fields of `serve.tensorrt_llm` that the LLM API has, too."""


def _optional(dtype: str, *names: str, dims: tuple[int, ...] = (1,)) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=name, dtype=dtype, dims=dims, optional=True) for name in names)


INPUTS = (
    TensorSpec(name="text_input", dtype="STRING", dims=(-1,)),
    *_optional("BOOL", "streaming"),
    *_optional("INT32", "sampling_param_best_of", "sampling_param_top_k"),
    *_optional("FP32", "sampling_param_temperature", "sampling_param_top_p"),
    *_optional("FP32", "sampling_param_frequency_penalty", "sampling_param_presence_penalty"),
    *_optional("INT32", "sampling_param_max_tokens"),
    *_optional("STRING", "sampling_param_stop", dims=(-1,)),
    *_optional("UINT64", "sampling_param_seed"),
    *_optional("BOOL", "sampling_param_exclude_input_from_output"),
    *_optional("BOOL", "return_finish_reason", "return_stop_reason", "return_cumulative_logprob"),
    *_optional("BOOL", "stop"),
)
OUTPUTS = (
    *(
        TensorSpec(name=name, dtype="STRING", dims=(-1,))
        for name in ("text_output", "finish_reason", "stop_reason")
    ),
    TensorSpec(name="cumulative_logprob", dtype="FP32", dims=(-1,)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How the LLM is split and how much it takes at once; None leaves it to TensorRT-LLM."""

    tp: int
    pp: int
    moe_tp: int | None
    moe_ep: int | None
    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int | None


def config(options: RepositoryOptions) -> ModelSpec:
    """Return the one model. Triton batches nothing: a request has one prompt."""
    return ModelSpec(
        name="tensorrt_llm",
        max_batch_size=0,
        inputs=INPUTS,
        outputs=OUTPUTS,
        instance_count=1,
        decoupled=options.decoupled,
    )


def settings(model: str, options: RepositoryOptions, parallelism: Parallelism) -> dict[str, Any]:
    """Return the content of model.yaml; what is not said is left out.

    Raises: UnsupportedError for what only repositories of engines have.
    """
    given = {key: value for key, value in options.tensorrt_llm.items() if value is not None}
    if given.get("batching_strategy") != "V1":
        given.pop("batching_strategy", None)
    unknown = [f"tensorrt_llm.{name}" for name in sorted(given.keys() - SERVE_FIELDS)]
    unknown += [
        name for name in ("priority_levels", "warmup_prompt_tokens") if getattr(options, name)
    ]
    if unknown:
        raise UnsupportedError(
            f"the LLM API's model does not have {', '.join(f'serve.{name}' for name in unknown)}"
        )
    window = given.get("max_attention_window_size")
    kv_cache = {
        "free_gpu_memory_fraction": options.kv_cache_free_gpu_mem_fraction,
        "enable_block_reuse": options.enable_kv_cache_reuse,
        "max_tokens": options.max_tokens_in_paged_kv_cache,
        "max_attention_window": list(window) if isinstance(window, tuple) else None,
        "sink_token_length": given.get("sink_token_length"),
        "host_cache_size": given.get("kv_cache_host_memory_bytes"),
        "onboard_blocks": given.get("kv_cache_onboard_blocks"),
    }
    found: dict[str, Any] = {
        "model": model,
        "tokenizer": options.tokenizer_dir,
        "backend": "pytorch",
        "tensor_parallel_size": parallelism.tp,
        "pipeline_parallel_size": parallelism.pp,
        "moe_tensor_parallel_size": parallelism.moe_tp,
        "moe_expert_parallel_size": parallelism.moe_ep,
        "max_batch_size": options.max_batch_size or parallelism.max_batch_size,
        "max_num_tokens": parallelism.max_num_tokens,
        "max_seq_len": parallelism.max_seq_len,
        "max_beam_width": given.get("max_beam_width"),
        "enable_chunked_prefill": options.enable_chunked_context,
        "kv_cache_config": _said(kv_cache),
        "scheduler_config": {"capacity_scheduler_policy": options.batch_scheduler_policy.upper()},
        "guided_decoding_backend": given.get("guided_decoding_backend"),
        "iter_stats_max_iterations": given.get("iter_stats_max_iterations"),
        "request_stats_max_iterations": given.get("request_stats_max_iterations"),
        "triton_config": {
            "max_batch_size": 0,
            "decoupled": options.decoupled,
            "cancellation_check_period_ms": options.cancellation_check_period_ms,
        },
    }
    return _said(found)


def write_settings(found: dict[str, Any], path: Path) -> None:
    """Write model.yaml."""
    path.write_text(yaml.safe_dump(found, sort_keys=False), encoding="utf-8")


def _said(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
