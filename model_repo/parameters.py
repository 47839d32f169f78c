"""Every parameter a model of a repository can be given: type, default, unit and versions.

What a parameter means is upstream's; here is what can be checked of it before anything is loaded.
Names of placeholders are those of NVIDIA's fill_template.py.

Source: triton-inference-server/tensorrtllm_backend, docs/model_config.md and the config.pbtxt files
of all_models/inflight_batcher_llm at each tag from v0.5.0 to v0.19.0 (first and last version that
has a key), of NVIDIA/TensorRT-LLM 1.2.0rc8 after that; how values are read:
inflight_batcher_llm/src/model_state.cc and model_instance_state.cc at v0.19.0 and 1.2.0rc8. There
an empty value is one that is not given.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["int", "float", "bool", "choice", "path", "text", "ids", "ints", "tree"]
"""`ids` are lists of numbers, a list for each instance: 0,1;2,3. `tree` is {0, 0}, {0, 1}."""

Owner = Literal["tensorrt_llm", "llmc"]

Version = tuple[int, ...]

BOOLEANS = {word: value for value in (True, False) for word in (str(value), str(value).lower())} | {
    "TRUE": True,
    "FALSE": False,
    "1": True,
    "0": False,
}
"""What the backend reads as a boolean."""

_PATTERNS: dict[str, tuple[str, str]] = {
    "int": (r"-?\d+", "a whole number"),
    "ids": (r"\d+(,\d+)*(;\d+(,\d+)*)*", "numbers such as 0,1 or, for two instances, 0,1;2,3"),
    "ints": (r"\d+(,\d+)*", "numbers such as 4096 or 4096,512"),
    "tree": (r"\{\s*\d+(\s*,\s*\d+)*\s*\}(\s*,\s*\{\s*\d+(\s*,\s*\d+)*\s*\})*", "{0, 0}, {0, 1}"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One key of `parameters`. `default` is what applies without it, in words where it is no value.

    `placeholder` None: the template has it as the `literal`, or with neither has no such key.
    `until` is the last version that has the key; None: none dropped it while the backend existed.
    """

    name: str
    kind: Kind
    default: str
    placeholder: str | None = None
    literal: str | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()
    least: float = -math.inf
    most: float = math.inf
    required: bool = False
    since: str = "0.5"
    until: str | None = None
    replaced_by: str = ""
    owner: Owner = "tensorrt_llm"

    @property
    def in_template(self) -> bool:
        return self.placeholder is not None or self.literal is not None

    def mistake(self, value: str) -> str | None:
        """Return what is wrong with `value`, or None. An empty value is one that is not given."""
        if not value:
            return f"empty, expected {self._expected()}" if self.required else None
        if not self._is_of_kind(value):
            return f"{value!r}, expected {self._expected()}"
        if self.kind in ("int", "float") and not self.least <= float(value) <= self.most:
            return f"{value}, expected {self._expected()}"
        return None

    def _is_of_kind(self, value: str) -> bool:
        if self.kind == "bool":
            return value in BOOLEANS
        if self.kind == "choice":
            return value in self.choices
        if self.kind == "float":
            return _is_number(value)
        return self.kind not in _PATTERNS or bool(re.fullmatch(_PATTERNS[self.kind][0], value))

    def _expected(self) -> str:
        if self.kind in ("int", "float"):
            what = "a whole number" if self.kind == "int" else "a number"
            bounds = [f"at least {self.least:g}"] if self.least > -math.inf else []
            bounds += [f"at most {self.most:g}"] if self.most < math.inf else []
            unit = f" of {self.unit}" if self.unit else ""
            return ", ".join([what + unit, *bounds])
        words = {"bool": "true or false", "choice": f"one of {', '.join(self.choices)}"}
        words |= {"path": "a path", "text": "text"}
        return words.get(self.kind) or _PATTERNS[self.kind][1]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _own(name: str, kind: Kind, default: str, **more: Any) -> Parameter:
    return _parameter(name, kind, default, placeholder=None, owner="llmc", **more)


def _parameter(name: str, kind: Kind, default: str, **more: Any) -> Parameter:
    """Return one whose placeholder has its own name unless `more` says otherwise."""
    return Parameter(**{"name": name, "kind": kind, "default": default, "placeholder": name} | more)


_INT_LIST_DEFAULT = "the longest sequence"
_FRACTION: dict[str, Any] = {"least": 0, "most": 1}
_DECODING_MODES = ("top_k", "top_p", "top_k_top_p", "beam_search")
_DRAFTING_MODES = ("medusa", "redrafter", "lookahead", "eagle")

TENSORRT_LLM: tuple[Parameter, ...] = (
    _parameter("max_beam_width", "int", "1", least=1, unit="beams"),
    _parameter(
        "FORCE_CPU_ONLY_INPUT_TENSORS",
        "choice",
        "no",
        choices=("yes", "no"),
        placeholder=None,
        literal="no",
    ),
    _parameter(
        "gpt_model_type",
        "choice",
        "required",
        required=True,
        placeholder="batching_strategy",
        choices=("V1", "v1", "inflight_batching", "inflight_fused_batching"),
    ),
    _parameter("gpt_model_path", "path", "none", placeholder="engine_dir"),
    _parameter(
        "encoder_model_path", "path", "none", placeholder="encoder_engine_dir", since="0.11"
    ),
    _parameter("max_tokens_in_paged_kv_cache", "int", "no limit", least=1, unit="tokens"),
    _parameter("max_attention_window_size", "ints", _INT_LIST_DEFAULT, unit="tokens", since="0.7"),
    _parameter("sink_token_length", "int", "none", least=0, unit="tokens", since="0.10"),
    _parameter(
        "batch_scheduler_policy",
        "choice",
        "guaranteed_no_evict",
        choices=("max_utilization", "guaranteed_no_evict"),
    ),
    _parameter("kv_cache_free_gpu_mem_fraction", "float", "0.9", **_FRACTION),
    _parameter("cross_kv_cache_fraction", "float", "0.5", since="0.14", **_FRACTION),
    _parameter("kv_cache_host_memory_bytes", "int", "0", least=0, unit="bytes", since="0.10"),
    _parameter("kv_cache_onboard_blocks", "bool", "true", since="0.10"),
    _parameter("enable_trt_overlap", "bool", "false"),
    _parameter("exclude_input_in_output", "bool", "false", since="0.6"),
    _parameter("cancellation_check_period_ms", "int", "100", least=1, unit="ms", since="0.10"),
    _parameter("stats_check_period_ms", "int", "100", least=1, unit="ms", since="0.10"),
    _parameter(
        "recv_poll_period_ms", "int", "0", least=0, unit="ms", since="0.19", placeholder=None
    ),
    _parameter("iter_stats_max_iterations", "int", "the executor's", least=0, since="0.10"),
    _parameter("request_stats_max_iterations", "int", "the executor's", least=0, since="0.10"),
    _parameter("enable_kv_cache_reuse", "bool", "true", since="0.7"),
    _parameter("normalize_log_probs", "bool", "true", since="0.8"),
    _parameter("enable_chunked_context", "bool", "false", since="0.8"),
    _parameter("gpu_device_ids", "ids", "all GPUs", since="0.8"),
    _parameter("participant_ids", "ids", "all ranks", since="0.13"),
    _parameter("num_nodes", "int", "1", least=1, unit="hosts", since="0.19"),
    _parameter("lora_cache_optimal_adapter_size", "int", "8", least=1, since="0.9"),
    _parameter("lora_cache_max_adapter_size", "int", "64", least=1, since="0.9"),
    _parameter("lora_cache_gpu_memory_fraction", "float", "0.05", since="0.9", **_FRACTION),
    _parameter("lora_cache_host_memory_bytes", "int", "1 GiB", least=0, unit="bytes", since="0.9"),
    _parameter("lora_prefetch_dir", "path", "none", since="0.19"),
    _parameter(
        "decoding_mode",
        "choice",
        "top_k_top_p; with beams beam_search",
        choices=(*_DECODING_MODES, *_DRAFTING_MODES),
        since="0.9",
    ),
    # A path inside the server's container, wherever lint runs.
    _parameter(
        "executor_worker_path",
        "text",
        "beside the backend",
        since="0.10",
        placeholder=None,
        literal="/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
    ),
    _parameter("lookahead_window_size", "int", "none", least=1, unit="tokens", since="0.19"),
    _parameter("lookahead_ngram_size", "int", "none", least=1, unit="tokens", since="0.19"),
    _parameter(
        "lookahead_verification_set_size", "int", "none", least=1, unit="n-grams", since="0.19"
    ),
    _parameter("medusa_choices", "tree", "mc_sim_7b_63", since="0.9"),
    _parameter("eagle_choices", "tree", "mc_sim_7b_63", since="0.16"),
    _parameter("gpu_weights_percent", "float", "1.0", since="0.10", **_FRACTION),
    _parameter("enable_context_fmha_fp32_acc", "bool", "false", since="0.12"),
    _parameter("multi_block_mode", "bool", "true", since="0.12"),
    _parameter("cuda_graph_mode", "bool", "false", since="0.15"),
    _parameter("cuda_graph_cache_size", "int", "0", least=0, unit="graphs", since="0.15"),
    _parameter("speculative_decoding_fast_logits", "bool", "false", since="0.15"),
    _parameter("tokenizer_dir", "path", "none", since="0.19"),
    _parameter("guided_decoding_backend", "choice", "none", choices=("xgrammar",), since="0.19"),
    _parameter("xgrammar_tokenizer_info_path", "path", "none", since="0.19"),
    _parameter(
        "max_num_sequences", "int", "none", until="0.7", replaced_by="max_batch_size of the engine"
    ),
    _parameter(
        "max_kv_cache_length",
        "int",
        "none",
        since="0.6",
        until="0.6",
        replaced_by="max_attention_window_size",
    ),
    _parameter(
        "worker_path",
        "text",
        "none",
        since="0.9",
        until="0.9",
        replaced_by="executor_worker_path",
    ),
    _own("skip_special_tokens", "bool", "true"),
    _own("launch_mode", "choice", "leader", choices=("leader", "orchestrator")),
    _own("rank_timeout_s", "float", "30", least=0, unit="s"),
    _own("max_rank_restarts", "int", "3", least=0),
)

_TOKENIZER_TYPE = _parameter(
    "tokenizer_type", "text", "auto", until="0.8", replaced_by="nothing: it is detected"
)

PARAMETERS: dict[str, tuple[Parameter, ...]] = {
    "tensorrt_llm": TENSORRT_LLM,
    "preprocessing": (
        _parameter("tokenizer_dir", "path", "required", required=True),
        _parameter("add_special_tokens", "bool", "true", since="0.7"),
        _parameter("multimodal_model_path", "path", "none", since="0.19"),
        _parameter(
            "visual_model_path",
            "path",
            "none",
            since="0.12",
            until="0.18",
            replaced_by="multimodal_model_path",
        ),
        _parameter("gpt_model_path", "path", "none", placeholder="engine_dir", since="0.12"),
        _parameter("max_num_images", "int", "1", least=1, since="0.15"),
        _parameter("hf_model_path", "path", "none", since="1.2"),
        _TOKENIZER_TYPE,
    ),
    "postprocessing": (
        _parameter("tokenizer_dir", "path", "required", required=True),
        _parameter("skip_special_tokens", "bool", "true", since="0.7"),
        _TOKENIZER_TYPE,
        _own("tensorrt_llm_model_name", "text", "tensorrt_llm"),
    ),
    "tensorrt_llm_bls": (
        _parameter("accumulate_tokens", "bool", "false", since="0.7"),
        _parameter("tensorrt_llm_model_name", "text", "tensorrt_llm", since="0.9"),
        _parameter("tensorrt_llm_draft_model_name", "text", "none", since="0.9"),
        _parameter("multimodal_encoders_name", "text", "none", since="0.13"),
        _own("cancellation_check_period_ms", "int", "100", least=1, unit="ms"),
    ),
}
"""Model → its parameters. A model that is not here, such as an ensemble, has none we know."""


def parse_version(text: str) -> Version | None:
    """Return 1.2 of 1.2.0rc3 as (1, 2); None for what is no version."""
    numbers = text.split(".")[:2]
    return tuple(map(int, numbers)) if all(number.isdecimal() for number in numbers) else None
