import pytest

from llmc.errors import ServeError
from llmc.runtime.engine import RankConfig
from llmc.runtime.inflight import IterationStats
from llmc.runtime.triton_metrics import DESCRIPTIONS, GAUGES
from llmc.runtime.triton_parameters import read_executor_config, read_flag, read_period_seconds

PARAMETERS = {
    "gpt_model_type": "inflight_fused_batching",
    "max_tokens_in_paged_kv_cache": "",
    "kv_cache_free_gpu_mem_fraction": "0.25",
    "batch_scheduler_policy": "max_utilization",
    "enable_chunked_context": "true",
    "enable_kv_cache_reuse": "false",
    "skip_special_tokens": "false",
    "launch_mode": "orchestrator",
    "rank_timeout_s": "2.5",
    "max_rank_restarts": "4",
}


def test_parameters_become_the_executors_configuration() -> None:
    config = read_executor_config(PARAMETERS)
    assert (config.kv.max_tokens, config.kv.free_memory_fraction) == (None, 0.25)
    assert config.scheduler.policy == "max_utilization"
    assert config.scheduler.enable_chunked_context and not config.scheduler.enable_kv_cache_reuse
    assert not config.skip_special_tokens
    assert config.ranks == RankConfig(
        launch_mode="orchestrator", timeout_seconds=2.5, max_restarts=4
    )
    limited = read_executor_config(PARAMETERS | {"max_tokens_in_paged_kv_cache": "640"})
    assert limited.kv.max_tokens == 640


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("batch_scheduler_policy", "fifo", "'fifo', expected max_utilization or guaranteed"),
        ("launch_mode", "follower", "'follower', expected leader or orchestrator"),
        ("gpt_model_type", "V1", "only knows inflight_fused_batching"),
        ("enable_chunked_context", "yes", "enable_chunked_context: 'yes', expected true or false"),
        ("kv_cache_free_gpu_mem_fraction", "lots", "'lots', expected a number"),
    ],
)
def test_a_value_without_meaning_is_refused(name: str, value: str, reason: str) -> None:
    with pytest.raises(ServeError, match=reason):
        read_executor_config(PARAMETERS | {name: value})


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(ServeError, match="parameter enable_kv_cache_reuse is missing"):
        read_flag({}, "enable_kv_cache_reuse")


def test_periods_are_positive() -> None:
    assert read_period_seconds({"period_ms": "250"}, "period_ms") == 0.25
    with pytest.raises(ServeError, match="expected more than 0"):
        read_period_seconds({"period_ms": "0"}, "period_ms")


def test_every_gauge_has_a_described_family_and_an_own_label() -> None:
    assert {gauge.family for gauge in GAUGES} == set(DESCRIPTIONS)
    assert len({(gauge.family, gauge.value) for gauge in GAUGES}) == len(GAUGES)
    stats = IterationStats(max_blocks=8, used_blocks=2, free_blocks=6, active=3)
    values = {(gauge.family, gauge.value): gauge.read(stats) for gauge in GAUGES}
    assert values["nv_trt_llm_kv_cache_block_metrics", "fraction"] == 0.25
    assert values["nv_trt_llm_request_metrics", "active"] == 3
    empty = {gauge.value: gauge.read(IterationStats()) for gauge in GAUGES}
    assert empty["fraction"] == 0
