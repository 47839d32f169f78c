"""The dialect from 1.3 on: no engine, but a Hugging Face checkpoint that the PyTorch backend loads.

How many GPUs share the model is chosen when it is served, so that the checkpoint is never split.
Source: NVIDIA/TensorRT-LLM main of 2026 (1.3), tensorrt_llm/_torch/models/_arch_index.py and
modeling_gemma2.py (the architectures with an implementation of their own).
"""

from llmc.builders.targets.tensorrt_llm.checks import algos_of
from llmc.builders.targets.tensorrt_llm.pytorch_layout import layout_reasons
from llmc.builders.targets.tensorrt_llm.quantizations import quantization_reasons
from llmc.checkpoint import CheckpointConfig
from llmc.recipes.tensorrt_llm import TensorrtLlmTarget
from llmc.tensorrt_llm_versions import VERSIONS

ARCHITECTURES = (
    "Cohere2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "GptOssForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Starcoder2ForCausalLM",
)
"""Those of llmc's that the PyTorch backend has."""

_OF_ENGINES = {
    "strip_plan": "an engine's weights",
    "weight_streaming": "an engine's weights",
    "timing_cache": "how an engine is built",
}


def is_pytorch(options: TensorrtLlmTarget) -> bool:
    """Say whether the version serves Hugging Face checkpoints."""
    return not VERSIONS[options.version].has_engines


def pytorch_reasons(
    config: CheckpointConfig, options: TensorrtLlmTarget, capability: int
) -> list[str]:
    """Return every reason why the PyTorch backend would not serve this checkpoint as asked."""
    line, architecture = options.version, config.arch.architecture
    reasons = [
        f"target.{name}: {value!r} is about {what}, and TensorRT-LLM {line} has none"
        for name, what in _OF_ENGINES.items()
        if (value := getattr(options, name))
    ]
    if options.build == "job":
        reasons.append(f"target.build: job, and nothing of TensorRT-LLM {line} is built on a GPU")
    algos, kv_algo = algos_of(config), config.quantization.kv_cache_quant_algo
    reasons += quantization_reasons(algos, kv_algo, line, capability)
    if architecture not in ARCHITECTURES:
        engines = ", ".join(name for name, one in VERSIONS.items() if one.has_engines)
        reasons.append(
            f"{architecture}: the PyTorch backend of TensorRT-LLM {line} has no model of it; it has"
            f" {', '.join(ARCHITECTURES)}. Versions with engines: {engines}"
        )
        return reasons
    return list(dict.fromkeys([*reasons, *layout_reasons(config)]))
