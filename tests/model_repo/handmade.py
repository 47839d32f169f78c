"""A repository as somebody fills it in from NVIDIA's templates, with an engine of trtllm-build.

Written as text, not by llmc's own writer: lint must take it as Triton does. The engine directory
has TensorRT-LLM 0.19's config.json and empty plans, which lint never opens.
"""

import json
from pathlib import Path
from typing import Any

UPSTREAM = json.loads((Path(__file__).parent / "inflight_batcher_llm.json").read_text())
ENGINE_VERSION = "0.19.0"
BATCH = 64

BACKENDS = {
    "preprocessing": "python",
    "tensorrt_llm": "tensorrtllm",
    "postprocessing": "python",
    "tensorrt_llm_bls": "python",
}


def filled(engine_dir: Path) -> dict[str, dict[str, str]]:
    """Return the parameters of each model; those left empty are not given."""
    tokenizer = str(engine_dir.with_name("tokenizer"))
    return {
        "preprocessing": {"tokenizer_dir": tokenizer, "add_special_tokens": "true"},
        "tensorrt_llm": {
            "gpt_model_type": "inflight_fused_batching",
            "gpt_model_path": str(engine_dir),
            "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
            "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
            "batch_scheduler_policy": "max_utilization",
            "kv_cache_free_gpu_mem_fraction": "0.85",
            "enable_kv_cache_reuse": "true",
            "enable_chunked_context": "true",
            "gpu_device_ids": "0,1",
            "max_beam_width": "1",
            "decoding_mode": "top_k_top_p",
        },
        "postprocessing": {"tokenizer_dir": tokenizer, "skip_special_tokens": "true"},
        "tensorrt_llm_bls": {
            "accumulate_tokens": "false",
            "tensorrt_llm_model_name": "tensorrt_llm",
        },
    }


def write_repository(root: Path) -> Path:
    """Write `root`/models, `root`/engine and `root`/tokenizer; return the repository."""
    engine_dir = write_engine(root / "engine")
    (root / "tokenizer").mkdir()
    parameters = filled(engine_dir)
    repository = root / "models"
    for model, facts in UPSTREAM.items():
        version = repository / model / "1"
        version.mkdir(parents=True)
        text = _config(model, facts, parameters.get(model, {}))
        (repository / model / "config.pbtxt").write_text(text)
        if BACKENDS.get(model) == "python":
            (version / "model.py").write_text("class TritonPythonModel:\n    pass\n")
    return repository


def write_engine(directory: Path, *, tp: int = 2, version: str = ENGINE_VERSION) -> Path:
    """Write an engine directory of `tp` ranks, as far as anything but the backend reads it."""
    directory.mkdir(parents=True)
    config = {
        "version": version,
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "dtype": "float16",
            "logits_dtype": "float32",
            "mapping": {"world_size": tp, "tp_size": tp, "pp_size": 1, "cp_size": 1},
            "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        },
        "build_config": {
            "max_input_len": 1024,
            "max_seq_len": 2048,
            "max_batch_size": BATCH,
            "max_beam_width": 1,
            "max_num_tokens": 8192,
            "opt_num_tokens": 64,
            "weight_streaming": False,
            "plugin_config": {"use_paged_context_fmha": True, "paged_kv_cache": True},
        },
    }
    (directory / "config.json").write_text(json.dumps(config))
    for rank in range(tp):
        (directory / f"rank{rank}.engine").touch()
    return directory


def edit_engine(directory: Path, part: str, **changes: Any) -> None:
    """Change keys of `pretrained_config` or `build_config`."""
    file = directory / "config.json"
    config = json.loads(file.read_text())
    config[part] |= changes
    file.write_text(json.dumps(config))


def _config(model: str, facts: dict[str, Any], parameters: dict[str, str]) -> str:
    lines = [f'name: "{model}"', f"max_batch_size: {BATCH}  # as the engine"]
    for kind in ("input", "output"):
        tensors = ",\n".join(_tensor(tensor) for tensor in facts[f"{kind}s"])
        lines.append(f"{kind} [\n{tensors}\n]")
    if "steps" in facts:
        steps = ",\n".join(_step(step) for step in facts["steps"])
        return "\n".join(
            [*lines, 'platform: "ensemble"', f"ensemble_scheduling {{ step [\n{steps} ] }}"]
        )
    lines.append(f'backend: "{BACKENDS[model]}"')
    if model in ("tensorrt_llm", "tensorrt_llm_bls"):
        lines.append("model_transaction_policy { decoupled: true }")
    if facts["dynamic_batching"] and model != "postprocessing":
        lines.append(
            f"dynamic_batching {{\n  preferred_batch_size: [ {BATCH} ]\n"
            "  max_queue_delay_microseconds: 0\n  default_queue_policy: { max_queue_size: 0 }\n}"
        )
    lines.append("instance_group [ { count: 1 kind: KIND_CPU } ]")
    lines += [
        f'parameters: {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
        for key, value in parameters.items()
    ]
    return "\n".join(lines) + "\n"


def _tensor(tensor: dict[str, Any]) -> str:
    fields = [f'name: "{tensor["name"]}"', f"data_type: TYPE_{tensor['dtype']}"]
    fields.append(f"dims: {tensor['dims']}")
    fields += ["optional: true"] if tensor.get("optional") else []
    fields += ["allow_ragged_batch: true"] if tensor.get("ragged") else []
    fields += ["reshape: { shape: [ ] }"] if tensor.get("scalar") else []
    return "  { " + " ".join(fields) + " }"


def _step(step: dict[str, Any]) -> str:
    maps = [
        f'{field} {{ key: "{name}" value: "{target}" }}'
        for field, names in (("input_map", step["inputs"]), ("output_map", step["outputs"]))
        for name, target in names.items()
    ]
    return f'  {{ model_name: "{step["model"]}" model_version: -1 ' + " ".join(maps) + " }"
