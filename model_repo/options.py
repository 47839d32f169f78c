"""What a model repository can be told, in the words of TensorRT-LLM's templates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

LaunchMode = Literal["leader", "orchestrator"]
TimeoutAction = Literal["REJECT", "DELAY"]
SchedulerPolicy = Literal["max_utilization", "guaranteed_no_evict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryOptions:
    """Settings of `emit_repository`: the fields of a recipe's `serve` part, where the defaults are.

    `max_batch_size` None takes the engine's. `max_tokens_in_paged_kv_cache` None leaves the size
    of the KV cache to `kv_cache_free_gpu_mem_fraction`, of the free memory of whatever device the
    engine is for. `max_queue_size` and `queue_timeout_microseconds` 0 are unlimited,
    `priority_levels` 0 is off: that is Triton's own spelling. `tensorrt_llm`: parameters of
    TensorRT-LLM's backend alone, by name; None is one that is not given.
    """

    max_batch_size: int | None
    decoupled: bool
    engine_dir: str | None
    tokenizer_dir: str | None
    llmc_tensors: bool | None
    kv_cache_free_gpu_mem_fraction: float
    max_tokens_in_paged_kv_cache: int | None
    batch_scheduler_policy: SchedulerPolicy
    enable_chunked_context: bool
    enable_kv_cache_reuse: bool
    exclude_input_in_output: bool
    cancellation_check_period_ms: int
    stats_check_period_ms: int
    add_special_tokens: bool
    skip_special_tokens: bool
    accumulate_tokens: bool
    preprocessing_instance_count: int
    postprocessing_instance_count: int
    bls_instance_count: int
    launch_mode: LaunchMode
    rank_timeout_s: float
    max_rank_restarts: int
    max_queue_delay_microseconds: int
    max_queue_size: int
    queue_timeout_microseconds: int
    queue_timeout_action: TimeoutAction
    allow_timeout_override: bool
    priority_levels: int
    default_priority_level: int | None
    priority_max_queue_sizes: tuple[int, ...] | None
    priority_timeouts_microseconds: tuple[int, ...] | None
    warmup_prompt_tokens: int | None
    warmup_requests: int
    tensorrt_llm: Mapping[str, object]
