"""A repository as somebody fills it in from NVIDIA's templates, with an engine of trtllm-build.

Written as text, not by llmc's own writer: lint must take it as Triton does, and what llmc emits is
compared with it. The engine directory has TensorRT-LLM's config.json and empty plans, which lint
never opens.
"""

import json
from pathlib import Path
from typing import Any

UPSTREAM = json.loads((Path(__file__).parent / "inflight_batcher_llm.json").read_text())
"""Models of TensorRT-LLM's repository: tensors, parameters with placeholder or literal, the
ensemble's maps. LOGITS is ${logits_datatype}; ${encoder_input_features_data_type} and
${prompt_embedding_table_data_type} are FP16, as the ensemble's own tensor is.

Source: NVIDIA/TensorRT-LLM 1.2.0rc8, triton_backend/all_models/inflight_batcher_llm.
"""

ENGINE_VERSION = "0.19.0"
BATCH = 64

BACKENDS = {
    "preprocessing": "python",
    "tensorrt_llm": "tensorrtllm",
    "postprocessing": "python",
    "tensorrt_llm_bls": "python",
}


def filled(engine_dir: Path) -> dict[str, dict[str, str]]:
    """Return the parameters of each model that are given; the template has all others empty."""
    tokenizer = str(engine_dir.with_name("tokenizer"))
    return {
        "preprocessing": {"tokenizer_dir": tokenizer, "add_special_tokens": "true"},
        "tensorrt_llm": {
            "gpt_model_type": "inflight_fused_batching",
            "gpt_model_path": str(engine_dir),
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
    for model in UPSTREAM:
        version = repository / model / "1"
        version.mkdir(parents=True)
        text = fill(model, parameters.get(model, {}))
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


def fill(
    model: str,
    parameters: dict[str, str],
    *,
    max_batch_size: int = BATCH,
    decoupled: bool = True,
    logits_datatype: str = "TYPE_FP32",
    max_queue_size: int = 0,
    instance_count: int = 1,
) -> str:
    """Return the template of `model` with its placeholders filled; parameters by their key."""
    facts = UPSTREAM[model]
    unfilled = {
        key: "" if value.startswith("${") else value for key, value in facts["parameters"].items()
    }
    assert parameters.keys() <= unfilled.keys(), model
    lines = [f'name: "{model}"', f"max_batch_size: {max_batch_size}  # as the engine"]
    for kind in ("input", "output"):
        # Upstream's ensemble has one output twice.
        found = {tensor["name"]: tensor for tensor in facts[f"{kind}s"]}
        tensors = ",\n".join(_tensor(tensor) for tensor in found.values())
        lines.append(f"{kind} [\n{tensors}\n]".replace("TYPE_LOGITS", logits_datatype))
    if "steps" in facts:
        steps = ",\n".join(_step(step) for step in facts["steps"])
        return "\n".join(
            [*lines, 'platform: "ensemble"', f"ensemble_scheduling {{ step [\n{steps} ] }}"]
        )
    lines.append(f'backend: "{BACKENDS[model]}"')
    if model in ("tensorrt_llm", "tensorrt_llm_bls"):
        lines.append(f"model_transaction_policy {{ decoupled: {str(decoupled).lower()} }}")
    if facts["dynamic_batching"]:
        lines.append(
            "dynamic_batching {}"
            if model == "postprocessing"
            else f"dynamic_batching {{\n  preferred_batch_size: [ {max_batch_size} ]\n"
            "  max_queue_delay_microseconds: 0\n"
            f"  default_queue_policy: {{ max_queue_size: {max_queue_size} }}\n}}"
        )
    lines.append(f"instance_group [ {{ count: {instance_count} kind: KIND_CPU }} ]")
    lines += [
        f'parameters: {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
        for key, value in (unfilled | parameters).items()
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
