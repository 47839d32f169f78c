"""What a model repository can be told; field names are those of TensorRT-LLM's templates where it has them."""

from dataclasses import dataclass
from typing import Literal

SchedulerPolicy = Literal["max_utilization", "guaranteed_no_evict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryOptions:
    """Settings of `emit_repository`; the engine's own limits come from its config.json.

    `max_batch_size` None takes the engine's. `max_tokens_in_paged_kv_cache` None leaves the size of the
    KV cache to `kv_cache_free_gpu_mem_fraction` (of free memory of whatever device the engine is for).
    `max_queue_size` 0 is unlimited, `priority_levels` 0 is off: both are Triton's own spelling.
    """

    max_batch_size: int | None = None
    decoupled: bool = True
    kv_cache_free_gpu_mem_fraction: float = 0.9
    max_tokens_in_paged_kv_cache: int | None = None
    batch_scheduler_policy: SchedulerPolicy = "max_utilization"
    enable_chunked_context: bool = True
    enable_kv_cache_reuse: bool = False
    exclude_input_in_output: bool = False
    cancellation_check_period_ms: int = 100
    stats_check_period_ms: int = 100
    add_special_tokens: bool = True
    skip_special_tokens: bool = True
    preprocessing_instance_count: int = 1
    postprocessing_instance_count: int = 1
    bls_instance_count: int = 4
    max_queue_delay_microseconds: int = 0
    max_queue_size: int = 0
    priority_levels: int = 0
