"""config.json and hf_quant_config.json of a checkpoint for the PyTorch backend.

Source: NVIDIA/TensorRT-LLM main of 2026 (1.3), tensorrt_llm/_torch/model_config.py
(from_pretrained, load_hf_quant_config), tensorrt_llm/quantization/modelopt_config.py: where there
is an hf_quant_config.json it says how the weights are quantized, whatever config.json has.
"""

import json
from pathlib import Path
from typing import Any

from llmc import __version__
from llmc.builders.hf.config import HF_CONFIG_NAME, read_json
from llmc.builders.targets.tensorrt_llm.pytorch_formats import HF_FORMATS
from llmc.builders.targets.tensorrt_llm.pytorch_layout import HfLayout
from llmc.checkpoint import MIXED_PRECISION, Checkpoint, Quantization
from llmc.errors import CheckpointError

_GPTQ = "W4A16_GPTQ"


def write_settings(checkpoint: Checkpoint, layout: HfLayout, output_dir: Path) -> None:
    """Write config.json and, where anything is quantized, hf_quant_config.json.

    GPTQ's settings are in config.json, where the backend looks for them; of a KV cache that is
    quantized they cannot say.
    """
    quantization = checkpoint.config.quantization
    data = _model_settings(checkpoint)
    if quantization.quant_algo == _GPTQ:
        data["quantization_config"] = _gptq_settings(quantization, layout)
    elif quantization.quant_algo == "FP8" and _is_all_linear(layout):
        data["quantization_config"] = _compressed_tensors_settings(layout)
    _write(output_dir / "config.json", data)
    if quantization.quant_algo in (None, _GPTQ) and quantization.kv_cache_quant_algo is None:
        return
    settings = _modelopt_settings(quantization, layout)
    producer = {"name": "llmc", "version": __version__}
    _write(output_dir / "hf_quant_config.json", {"producer": producer, "quantization": settings})


def _model_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the model's own config.json, with the dtype of these weights and no quantization."""
    path = checkpoint.directory / HF_CONFIG_NAME
    if not path.is_file():
        raise CheckpointError(
            f"{path}: missing, the model's own config.json", hint="convert the model again"
        )
    data = read_json(path)
    # Code a model brings along is not copied, and no known architecture needs it.
    for key in ("quantization_config", "auto_map"):
        data.pop(key, None)
    key = "dtype" if "dtype" in data else "torch_dtype"
    return data | {key: checkpoint.config.dtype}


def _modelopt_settings(quantization: Quantization, layout: HfLayout) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "quant_algo": quantization.quant_algo,
        "kv_cache_quant_algo": quantization.kv_cache_quant_algo,
    }
    if quantization.quant_algo is None:
        return settings
    if quantization.quant_algo != MIXED_PRECISION:
        return settings | _algo_settings(quantization) | {"exclude_modules": [*layout.left_plain]}
    layers: dict[str, dict[str, Any]] = {}
    for module in layout.modules:
        own = quantization.of_module(module.linear.name)
        # Experts of a layer are one to the backend.
        name = module.name if module.expert is None else module.name.partition(".experts.")[0]
        name = name if module.expert is None else f"{name}.experts"
        layers[name] = {"quant_algo": own.quant_algo} | _algo_settings(own)
    return settings | {"quantized_layers": layers}


def _algo_settings(quantization: Quantization) -> dict[str, Any]:
    """Return what belongs to an algorithm beside its name."""
    assert quantization.quant_algo is not None
    form = HF_FORMATS[quantization.quant_algo]
    group = {"group_size": quantization.group_size} if form.has_groups else {}
    return group | form.settings


def _gptq_settings(quantization: Quantization, layout: HfLayout) -> dict[str, Any]:
    """Return GPTQ's own settings: zero points as they are, columns in order."""
    settings = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": quantization.group_size,
        "desc_act": False,
        "sym": False,
        "checkpoint_format": "gptq_v2",
        "lm_head": False,
    }
    others = [name for name in layout.left_plain if name != "lm_head"]
    return settings | ({"modules_to_not_convert": others} if others else {})


def _is_all_linear(layout: HfLayout) -> bool:
    """Say whether transformers has each quantized module as a linear layer of its own."""
    return all(module.expert is None for module in layout.modules)


def _compressed_tensors_settings(layout: HfLayout) -> dict[str, Any]:
    """Return FP8 in the words of compressed-tensors, which holds the same tensors.

    With them transformers and others read the checkpoint, too; TensorRT-LLM does not look.
    Source: compressed-tensors 0.20 compressed_tensors/quantization/quant_args.py.
    """
    one = {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": "tensor",
        "dynamic": False,
    }
    group = {"targets": ["Linear"], "weights": one, "input_activations": one}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": [*layout.left_plain],
    }


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
