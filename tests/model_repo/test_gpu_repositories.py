"""Repositories for TensorRT-LLM's backend are NVIDIA's templates filled in, to the last field."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from llmc.errors import LlmcError
from llmc.model_repo import MODELS
from llmc.model_repo.emit import emit_repository
from llmc.model_repo.lint import Client, find_mistakes
from llmc.model_repo.options import RepositoryOptions
from llmc.model_repo.pbtxt import read_config
from llmc.recipes.loader import load_recipe
from tests.model_repo.handmade import BATCH, UPSTREAM, fill, write_engine
from tests.runtime.tiny_tokenizers import byte_level, save

Values = dict[str, dict[str, str]]

RECIPES: dict[str, tuple[int, str, Values]] = {
    "single GPU, streaming": (
        1,
        """
        decoupled: true
        enable_kv_cache_reuse: true
        exclude_input_in_output: true
        preprocessing_instance_count: 4
        max_queue_size: 128
        """,
        {
            "tensorrt_llm": {
                "batch_scheduler_policy": "max_utilization",
                "kv_cache_free_gpu_mem_fraction": "0.9",
                "enable_kv_cache_reuse": "true",
                "enable_chunked_context": "true",
                "exclude_input_in_output": "true",
            },
        },
    ),
    "tp=4, leader": (
        4,
        """
        decoupled: false
        launch_mode: leader
        batch_scheduler_policy: guaranteed_no_evict
        kv_cache_free_gpu_mem_fraction: 0.85
        enable_chunked_context: false
        max_tokens_in_paged_kv_cache: 65536
        skip_special_tokens: false
        tensorrt_llm:
          gpu_device_ids: [[4, 5, 6, 7]]
          max_attention_window_size: [4096, 32768]
          normalize_log_probs: false
          decoding_mode: top_k_top_p
          guided_decoding_backend: xgrammar
          xgrammar_tokenizer_info_path: "{root}/tokenizer_info.json"
        """,
        {
            "tensorrt_llm": {
                "batch_scheduler_policy": "guaranteed_no_evict",
                "kv_cache_free_gpu_mem_fraction": "0.85",
                "enable_kv_cache_reuse": "false",
                "enable_chunked_context": "false",
                "exclude_input_in_output": "false",
                "max_tokens_in_paged_kv_cache": "65536",
                "gpu_device_ids": "4,5,6,7",
                "max_attention_window_size": "4096,32768",
                "normalize_log_probs": "false",
                "decoding_mode": "top_k_top_p",
                "guided_decoding_backend": "xgrammar",
                "xgrammar_tokenizer_info_path": "{root}/tokenizer_info.json",
            },
            "postprocessing": {"skip_special_tokens": "false"},
        },
    ),
    "orchestrator, LoRA, KV offload": (
        2,
        """
        launch_mode: orchestrator
        enable_kv_cache_reuse: true
        tensorrt_llm:
          participant_ids: [[1, 2]]
          kv_cache_host_memory_bytes: 45000000000
          lora_cache_optimal_adapter_size: 16
          lora_cache_max_adapter_size: 64
          lora_cache_gpu_memory_fraction: 0.1
          lora_cache_host_memory_bytes: 2147483648
          lora_prefetch_dir: "{root}/adapters"
          lookahead_window_size: 7
          lookahead_ngram_size: 7
          lookahead_verification_set_size: 7
          decoding_mode: lookahead
        """,
        {
            "tensorrt_llm": {
                "batch_scheduler_policy": "max_utilization",
                "kv_cache_free_gpu_mem_fraction": "0.9",
                "enable_kv_cache_reuse": "true",
                "enable_chunked_context": "true",
                "exclude_input_in_output": "false",
                "participant_ids": "1,2",
                "kv_cache_host_memory_bytes": "45000000000",
                "lora_cache_optimal_adapter_size": "16",
                "lora_cache_max_adapter_size": "64",
                "lora_cache_gpu_memory_fraction": "0.1",
                "lora_cache_host_memory_bytes": "2147483648",
                "lora_prefetch_dir": "{root}/adapters",
                "lookahead_window_size": "7",
                "lookahead_ngram_size": "7",
                "lookahead_verification_set_size": "7",
                "decoding_mode": "lookahead",
            },
        },
    ),
}
"""Name → ranks, the recipe's `serve`, the values somebody gives fill_template.py for the same."""


def write_root(root: Path, tp: int) -> Path:
    """Write an engine of TensorRT-LLM with its tokenizer, and what the recipes point at."""
    engine_dir = write_engine(root / "engine", tp=tp, version="1.2.1")
    save(byte_level(), engine_dir)
    (root / "adapters").mkdir()
    (root / "tokenizer_info.json").touch()
    return engine_dir


def read_options(serve: str, root: Path) -> RepositoryOptions:
    file = root / "recipe.yaml"
    document = {"model": "m", "serve": yaml.safe_load(serve.replace("{root}", str(root)))}
    file.write_text(yaml.safe_dump(document))
    return RepositoryOptions(**load_recipe(file).serve.model_dump())


def emit(root: Path, serve: str = "", **where: Path) -> Path:
    repository = root / "model_repo"
    repository.mkdir()
    emit_repository(root / "engine", repository, read_options(serve or "{}", root), **where)
    return repository


def parse(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def in_order(config: Any) -> Any:
    """Put tensors in the order of their names: Triton knows them by nothing else."""
    for tensors in (config.input, config.output):
        tensors.sort(key=lambda tensor: tensor.name)
    return config


@pytest.mark.parametrize("name", RECIPES)
def test_it_is_nvidias_template_filled_with_the_same_values(name: str, tmp_path: Path) -> None:
    tp, serve, given = RECIPES[name]
    engine_dir = write_root(tmp_path, tp)
    repository = emit(tmp_path, serve)
    options = read_options(serve, tmp_path)
    common: Values = {
        "preprocessing": {"tokenizer_dir": "../engine", "add_special_tokens": "true"},
        "tensorrt_llm": {
            "gpt_model_type": "inflight_fused_batching",
            "gpt_model_path": str(engine_dir),
            "tokenizer_dir": "../engine",
            "max_beam_width": "1",
            "cancellation_check_period_ms": "100",
            "stats_check_period_ms": "100",
        },
        "postprocessing": {"tokenizer_dir": "../engine", "skip_special_tokens": "true"},
        "tensorrt_llm_bls": {
            "accumulate_tokens": "false",
            "tensorrt_llm_model_name": "tensorrt_llm",
        },
    }
    assert set(MODELS) == set(UPSTREAM)
    for model in MODELS:
        values = common.get(model, {}) | given.get(model, {})
        template = fill(
            model,
            {key: value.replace("{root}", str(tmp_path)) for key, value in values.items()},
            decoupled=options.decoupled,
            max_queue_size=options.max_queue_size,
            instance_count=4 if model == "preprocessing" and tp == 1 else 1,
        )
        emitted = in_order(read_config(repository / model / "config.pbtxt"))
        assert emitted == in_order(parse(template)), model


def test_the_backend_needs_no_file_but_its_version(tmp_path: Path) -> None:
    write_root(tmp_path, 1)
    repository = emit(tmp_path)
    assert [file.name for file in (repository / "tensorrt_llm" / "1").iterdir()] == [".keep"]
    assert {file.parent.parent.name for file in repository.glob("*/1/model.py")} == {
        *("preprocessing", "postprocessing", "tensorrt_llm_bls")
    }


def test_every_parameter_of_the_backend_has_a_field(tmp_path: Path) -> None:
    """The field has the parameter's name; values of each kind are spelled as the backend reads."""
    write_root(tmp_path, 2)
    serve = """
    launch_mode: orchestrator
    tensorrt_llm:
      batching_strategy: V1
      sink_token_length: 4
      kv_cache_onboard_blocks: false
      cross_kv_cache_fraction: 0.5
      recv_poll_period_ms: 10
      iter_stats_max_iterations: 1000
      request_stats_max_iterations: 0
      gpu_device_ids: [[0, 1], [2, 3]]
      num_nodes: 1
      medusa_choices: [[0], [0, 0], [1]]
      speculative_decoding_fast_logits: false
      gpu_weights_percent: 1.0
      enable_context_fmha_fp32_acc: true
      multi_block_mode: false
      enable_trt_overlap: false
      cuda_graph_mode: true
      cuda_graph_cache_size: 16
      decoding_mode: medusa
    """
    config = read_config(emit(tmp_path, serve) / "tensorrt_llm" / "config.pbtxt")
    found = {key: value.string_value for key, value in config.parameters.items()}
    assert found["gpt_model_type"] == "V1"
    assert found["gpu_device_ids"] == "0,1;2,3"
    assert config.instance_group[0].count == 2, "one instance for each set of GPUs"
    assert found["medusa_choices"] == "{0}, {0,0}, {1}"
    assert found["recv_poll_period_ms"] == "10", "documented, though not in the template"
    assert (found["cuda_graph_mode"], found["multi_block_mode"]) == ("true", "false")
    fields = set(read_options(serve, tmp_path).tensorrt_llm) - {"batching_strategy"}
    assert fields <= found.keys()
    template = set(UPSTREAM["tensorrt_llm"]["parameters"])
    elsewhere = {"gpt_model_type", "gpt_model_path", "FORCE_CPU_ONLY_INPUT_TENSORS"}
    elsewhere |= {"executor_worker_path", "tokenizer_dir", "encoder_model_path"}
    shared = set(RepositoryOptions.__dataclass_fields__)
    assert template <= fields | elsewhere | shared


CHOICES: dict[str, tuple[str, ...]] = {
    "decoupled": ("true", "false"),
    "launch_mode": ("leader", "orchestrator"),
    "priority_levels": ("0", "3"),
    "warmup_prompt_tokens": ("null", "16"),
    "engine_dir": ("null", "/models/engine"),
    "enable_kv_cache_reuse": ("true", "false"),
}


@pytest.mark.parametrize("run", range(8))
def test_lint_finds_nothing_whatever_is_chosen(run: int, tmp_path: Path) -> None:
    """Emitting lints; here once more, as its clients ask. Eight runs have every pair of choices."""
    a, b, c = (run >> bit & 1 for bit in range(3))
    picked = dict(zip(CHOICES, (a, b, c, a ^ b, a ^ c, b ^ c), strict=True))
    values = {name: CHOICES[name][which] for name, which in picked.items()}
    write_root(tmp_path, tp=1 + (a ^ b ^ c))
    serve = ", ".join(f"{name}: {value}" for name, value in values.items())
    client: Client = "stream" if values["decoupled"] == "true" else "generate"
    repository = emit(tmp_path, f"{{{serve}}}")
    assert find_mistakes(repository, elsewhere=True, client=client) == []


def test_queues_have_priorities_and_timeouts(tmp_path: Path) -> None:
    write_root(tmp_path, 1)
    serve = """
    priority_levels: 3
    default_priority_level: 2
    max_queue_size: 100
    queue_timeout_microseconds: 2000000
    queue_timeout_action: DELAY
    allow_timeout_override: true
    priority_max_queue_sizes: [0, 100, 10]
    priority_timeouts_microseconds: [500000, 2000000, 2000000]
    """
    repository = emit(tmp_path, serve)
    queue = read_config(repository / "tensorrt_llm" / "config.pbtxt").dynamic_batching
    assert (queue.priority_levels, queue.default_priority_level) == (3, 2)
    policies = {0: queue.default_queue_policy, **queue.priority_queue_policy}
    assert {level: policy.max_queue_size for level, policy in policies.items()} == {
        0: 100,
        1: 0,
        2: 100,
        3: 10,
    }
    assert [policies[level].default_timeout_microseconds for level in (1, 2, 3)] == [
        *(500000, 2000000, 2000000)
    ]
    for policy in policies.values():
        assert policy.timeout_action == policy.DELAY and policy.allow_timeout_override
    # Only the model that requests wait for has priorities.
    first = read_config(repository / "preprocessing" / "config.pbtxt").dynamic_batching
    assert first.priority_levels == 0 and not first.priority_queue_policy


def test_a_prompt_can_warm_it_up(tmp_path: Path) -> None:
    write_root(tmp_path, 1)
    repository = emit(tmp_path, "{warmup_prompt_tokens: 100, warmup_requests: 3}")
    (warmup,) = read_config(repository / "tensorrt_llm" / "config.pbtxt").model_warmup
    assert (warmup.batch_size, set(warmup.inputs)) == (
        3,
        {"input_ids", "input_lengths", "request_output_len"},
    )
    for name, tensor in warmup.inputs.items():
        data = repository / "tensorrt_llm" / "warmup" / tensor.input_data_file
        assert data.stat().st_size == 4 * tensor.dims[0], name
    assert (repository / "tensorrt_llm" / "warmup" / "input_lengths").read_bytes()[0] == 100


def test_the_server_may_have_other_paths(tmp_path: Path) -> None:
    write_root(tmp_path, 1)
    repository = emit(tmp_path, "{engine_dir: /models/engine}")
    for model in ("preprocessing", "postprocessing", "tensorrt_llm"):
        parameters = read_config(repository / model / "config.pbtxt").parameters
        assert parameters["tokenizer_dir"].string_value == "/models/engine"
    assert parameters["gpt_model_path"].string_value == "/models/engine"


def test_a_tokenizer_from_elsewhere(tmp_path: Path) -> None:
    engine_dir = write_root(tmp_path, 1)
    (engine_dir / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(LlmcError, match="engine: no tokenizer.json"):
        emit(tmp_path)
    shutil.rmtree(tmp_path / "model_repo")
    repository = emit(tmp_path, tokenizer_dir=tmp_path)
    parameters = read_config(repository / "preprocessing" / "config.pbtxt").parameters
    assert parameters["tokenizer_dir"].string_value == ".."


def _set_version(engine_dir: Path, version: str) -> None:
    file = engine_dir / "config.json"
    file.write_text(file.read_text().replace("1.2.1", version))


REFUSED: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "version without such a backend": (
        "{}",
        lambda root: _set_version(root / "engine", "0.9.0"),
        "an engine of TensorRT-LLM 0.9.0, expected one of 0.20 to 1.2",
    ),
    "batch": (
        f"{{max_batch_size: {BATCH + 1}}}",
        lambda root: None,
        f"max_batch_size: {BATCH + 1} is more than the engine's {BATCH}",
    ),
    "tensors the backend lacks": (
        "{llmc_tensors: true}",
        lambda root: None,
        "llmc_tensors: True, but TensorRT-LLM's backend does not have them",
    ),
    "rank": (
        "{}",
        lambda root: (root / "engine" / "rank1.engine").unlink(),
        "gpt_model_path: no engine file of rank 1, of 2 ranks",
    ),
    "GPUs": (
        "{tensorrt_llm: {gpu_device_ids: [[0]]}}",
        lambda root: None,
        "gpu_device_ids: 0, but the engine has 2 ranks",
    ),
    "instances in leader mode": (
        "{tensorrt_llm: {gpu_device_ids: [[0, 1], [2, 3]]}}",
        lambda root: None,
        "launch_mode: leader, but gpu_device_ids has GPUs for 2 instances of 2 ranks each",
    ),
    "beams": (
        "{tensorrt_llm: {max_beam_width: 4}}",
        lambda root: None,
        "max_beam_width: 4, but the engine was built for 1",
    ),
    "levels of queues": (
        "{priority_levels: 2, priority_max_queue_sizes: [1]}",
        lambda root: None,
        "priority_max_queue_sizes: 1 values, expected one for each of 2 priority_levels",
    ),
    "default level": (
        "{priority_levels: 2, default_priority_level: 3}",
        lambda root: None,
        "default_priority_level: 3, expected 1 to 2",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_the_engine_is_refused(name: str, tmp_path: Path) -> None:
    serve, change, reason = REFUSED[name]
    write_root(tmp_path, 2)
    change(tmp_path)
    with pytest.raises(LlmcError, match=reason):
        emit(tmp_path, serve)


def test_all_that_does_not_fit_is_said_at_once(tmp_path: Path) -> None:
    write_root(tmp_path, 2)
    serve = "{max_batch_size: 999, llmc_tensors: true, default_priority_level: 1}"
    with pytest.raises(LlmcError) as caught:
        emit(tmp_path, serve)
    reasons = ("max_batch_size: 999", "llmc_tensors: True", "default_priority_level: 1")
    assert all(reason in caught.value.message for reason in reasons)
