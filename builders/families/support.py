"""What can be built of each family: asked of the code itself, on a small architecture of it."""

from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from llmc.builders.families import FAMILIES
from llmc.builders.families.family import load_family, unwritten_formats
from llmc.builders.hf.config import HfConfig
from llmc.builders.targets import BuildLimits
from llmc.checkpoint import CheckpointConfig, Quantization, forbidden
from llmc.quant import FORMATS
from llmc.quant.format import load_format
from llmc.recipes.schema import CpuTarget, TargetRecipe, TensorrtTarget, TensorRtxTarget
from llmc.recipes.tensorrt_llm import TensorrtLlmTarget
from llmc.targets import TARGETS

NONE = "none"
"""What the table calls a model that is not quantized."""

COLUMNS: dict[str, tuple[TargetRecipe, str]] = {
    "cpu": (CpuTarget(), "bfloat16"),
    "tensorrt-rtx 75": (
        TensorRtxTarget(kind="tensorrt-rtx", compute_capabilities=(75,)),
        "float16",
    ),
    "tensorrt-rtx 80": (
        TensorRtxTarget(kind="tensorrt-rtx", compute_capabilities=(80,)),
        "bfloat16",
    ),
    "tensorrt-rtx 89": (
        TensorRtxTarget(kind="tensorrt-rtx", compute_capabilities=(89,)),
        "bfloat16",
    ),
    "tensorrt-rtx 120": (
        TensorRtxTarget(kind="tensorrt-rtx", compute_capabilities=(120,)),
        "bfloat16",
    ),
    "tensorrt 90": (TensorrtTarget(kind="tensorrt", compute_capability=90), "bfloat16"),
    "tensorrt-llm 1.2, 89": (
        TensorrtLlmTarget(kind="tensorrt-llm", version="1.2", compute_capability=89),
        "bfloat16",
    ),
}
"""Column of the table → the target as a recipe has it, and the dtype that is asked for."""

_LENGTH = 512
_SIZES: dict[tuple[str, ...], int] = {
    ("hidden_size", "n_embd", "d_model"): 256,
    ("num_hidden_layers", "n_layer", "n_layers"): 2,
    ("num_attention_heads", "n_head", "n_heads"): 4,
    ("num_key_value_heads", "num_kv_heads"): 4,
    ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"): 512,
    ("vocab_size",): 512,
    ("max_position_embeddings", "n_positions", "max_seq_len"): _LENGTH,
    ("rotary_dim",): 64,
    ("num_local_experts", "num_experts", "n_routed_experts"): 4,
    ("num_experts_per_tok",): 2,
    ("moe_intermediate_size", "shared_expert_intermediate_size"): 256,
    ("n_shared_experts", "n_group", "topk_group"): 1,
    ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"): 64,
}
"""A config.json that every family can read, whatever it calls its sizes."""

LIMITS = BuildLimits(
    max_batch_size=4,
    max_num_tokens=_LENGTH,
    max_input_len=_LENGTH,
    max_seq_len=_LENGTH,
    tokens_per_block=32,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """One architecture. `reasons`: column → quant_algo → why it cannot be built; empty if it can.

    `tensorrt_llm` is the first version of TensorRT-LLM that reads the checkpoint (`Family`).
    """

    architecture: str
    family: str
    tensorrt_llm: str | None
    reasons: dict[str, dict[str, list[str]]]


def support() -> list[Support]:
    """Return what can be built of every architecture, for every column and quantization."""
    found = []
    for architecture, name in FAMILIES.items():
        family = load_family(architecture)
        arch = family.arch(example(architecture))
        reasons = {
            column: {
                algo: _reasons(CheckpointConfig(arch=arch, dtype=dtype), target, algo)
                for algo in (NONE, *FORMATS)
            }
            for column, (target, dtype) in COLUMNS.items()
        }
        found.append(
            Support(
                architecture=architecture,
                family=name,
                tensorrt_llm=family.tensorrt_llm,
                reasons=reasons,
            )
        )
    return found


def example(architecture: str) -> HfConfig:
    """Return the config.json of a small model of `architecture`."""
    data: dict[str, Any] = {name: size for names, size in _SIZES.items() for name in names}
    return HfConfig(Path("config.json"), {**data, "architectures": [architecture]})


def _reasons(plain: CheckpointConfig, target: TargetRecipe, algo: str) -> list[str]:
    config = plain
    if algo != NONE:
        form = load_format(algo)
        # Of what has no portable form, one of its layouts.
        packed = form.needs_layout and form.in_checkpoint == "quantized"
        config = replace(
            plain, quantization=Quantization.of(algo), layout="sm80" if packed else None
        )
    module = import_module(f"llmc.builders.targets.{TARGETS[target.kind]}")
    # A target is only asked for what a checkpoint can be.
    reasons = forbidden(config) or unwritten_formats(config)
    return reasons or list(module.unsupported(config, LIMITS, target))
