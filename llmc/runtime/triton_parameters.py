"""Parameters of TensorRT-LLM's Triton model as the executor's configuration; no Triton in here.

Source: triton-inference-server/tensorrtllm_backend at c2e65b88, docs/model_config.md.
"""

from collections.abc import Mapping
from typing import Literal

from llmc.errors import ServeError
from llmc.runtime.engine import KvCacheConfig, RankConfig
from llmc.runtime.executor import ExecutorConfig
from llmc.runtime.scheduler import BatchSchedulerPolicy, SchedulerConfig

LAUNCH_MODES: dict[str, Literal["leader", "orchestrator"]] = {
    "leader": "leader",
    "orchestrator": "orchestrator",
}
POLICIES: dict[str, BatchSchedulerPolicy] = {
    "max_utilization": "max_utilization",
    "guaranteed_no_evict": "guaranteed_no_evict",
}


def read_executor_config(parameters: Mapping[str, str]) -> ExecutorConfig:
    """Return how the emitted configuration wants the engine served.

    Raises: ServeError for a parameter that is missing or has a value that means nothing.
    """
    limit = _text(parameters, "max_tokens_in_paged_kv_cache")
    policy = _text(parameters, "batch_scheduler_policy")
    if policy not in POLICIES:
        raise ServeError(f"batch_scheduler_policy: {policy!r}, expected {' or '.join(POLICIES)}")
    if _text(parameters, "gpt_model_type") != "inflight_fused_batching":
        raise ServeError("gpt_model_type: this executor only knows inflight_fused_batching")
    mode = _text(parameters, "launch_mode")
    if mode not in LAUNCH_MODES:
        raise ServeError(f"launch_mode: {mode!r}, expected {' or '.join(LAUNCH_MODES)}")
    return ExecutorConfig(
        kv=KvCacheConfig(
            max_tokens=int(_number(parameters, "max_tokens_in_paged_kv_cache")) if limit else None,
            free_memory_fraction=_number(parameters, "kv_cache_free_gpu_mem_fraction"),
        ),
        ranks=RankConfig(
            launch_mode=LAUNCH_MODES[mode],
            timeout_seconds=_number(parameters, "rank_timeout_s"),
            max_restarts=int(_number(parameters, "max_rank_restarts")),
        ),
        scheduler=SchedulerConfig(
            policy=POLICIES[policy],
            enable_chunked_context=read_flag(parameters, "enable_chunked_context"),
            enable_kv_cache_reuse=read_flag(parameters, "enable_kv_cache_reuse"),
        ),
        skip_special_tokens=read_flag(parameters, "skip_special_tokens"),
    )


def read_flag(parameters: Mapping[str, str], name: str) -> bool:
    """Return a yes or no. Raises: ServeError for anything else."""
    value = _text(parameters, name).lower()
    if value not in ("true", "false"):
        raise ServeError(f"{name}: {value!r}, expected true or false")
    return value == "true"


def read_period_seconds(parameters: Mapping[str, str], name: str) -> float:
    """Return a period that is given in milliseconds. Raises: ServeError when it is not positive."""
    period = _number(parameters, name)
    if period <= 0:
        raise ServeError(f"{name}: {period}, expected more than 0")
    return period / 1000


def _number(parameters: Mapping[str, str], name: str) -> float:
    value = _text(parameters, name)
    try:
        return float(value)
    except ValueError as error:
        raise ServeError(f"{name}: {value!r}, expected a number") from error


def _text(parameters: Mapping[str, str], name: str) -> str:
    if name not in parameters:
        raise ServeError(f"parameter {name} is missing from config.pbtxt")
    return parameters[name]
