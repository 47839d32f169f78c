"""What a model repository can be told, in the words of TensorRT-LLM's templates."""

from dataclasses import dataclass
from typing import Literal

LaunchMode = Literal["leader", "orchestrator"]
SchedulerPolicy = Literal["max_utilization", "guaranteed_no_evict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryOptions:
    """Settings of `emit_repository`: the fields of a recipe's `serve` part, where the defaults are.

    `max_batch_size` None takes the engine's. `max_tokens_in_paged_kv_cache` None leaves the size
    of the KV cache to `kv_cache_free_gpu_mem_fraction`, of the free memory of whatever device the
    engine is for. `max_queue_size` 0 is unlimited, `priority_levels` 0 is off: both are Triton's
    own spelling.
    """

    max_batch_size: int | None
    decoupled: bool
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
    preprocessing_instance_count: int
    postprocessing_instance_count: int
    bls_instance_count: int
    launch_mode: LaunchMode
    rank_timeout_s: float
    max_rank_restarts: int
    max_queue_delay_microseconds: int
    max_queue_size: int
    priority_levels: int
