"""What TensorRT-LLM's Python API is given for a build: plain data, one job for each rank.

The same build as `command` writes out for trtllm-build.
Source: NVIDIA/TensorRT-LLM tensorrt_llm/commands/build.py (main, parallel_build) of 0.17 and
65f1d153 (1.2); tensorrt_llm/builder.py (BuildConfig.from_dict), which has a default for each key
that is left out; tensorrt_llm/plugin/plugin.py (PluginConfig.from_arguments).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmc.builders.targets import BuildLimits
from llmc.builders.targets.tensorrt_llm.command import build_values, plugin_word
from llmc.plugins.tensorrt_llm_options import Value
from llmc.recipes.tensorrt_llm import TensorrtLlmTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """One rank, built in a process of its own on the GPU numbered `gpu`.

    `settings` are the argument of BuildConfig.from_dict, `plugins` the attributes of what
    PluginConfig.from_arguments reads, in the words of the command line; `lora` are arguments of
    build_and_save.
    """

    rank: int
    gpu: int
    checkpoint: str
    output: str
    settings: dict[str, Value]
    plugins: dict[str, str | int]
    lora: dict[str, Any]
    strip_plan: bool


def rank_jobs(
    num_ranks: int,
    limits: BuildLimits,
    target: TensorrtLlmTarget,
    *,
    checkpoint: Path,
    output: Path,
    timing_cache: Path,
) -> list[RankJob]:
    """Return the job of every rank: `workers` GPUs take turns, as trtllm-build has them."""
    return [
        RankJob(
            rank=rank,
            gpu=rank % target.workers,
            checkpoint=str(checkpoint.resolve()),
            output=str(output.resolve()),
            settings=build_settings(limits, target, timing_cache),
            plugins=plugin_words(limits),
            lora=lora_arguments(target),
            strip_plan=target.strip_plan,
        )
        for rank in range(num_ranks)
    ]


def build_settings(
    limits: BuildLimits, target: TensorrtLlmTarget, timing_cache: Path
) -> dict[str, Value]:
    """Return what BuildConfig is told; the rest is TensorRT-LLM's default.

    A timing cache that is not there yet is written, one that is there read and written again.
    """
    cache = str(timing_cache.resolve())
    return {
        **build_values(limits, target),
        "strongly_typed": True,
        "input_timing_cache": cache if timing_cache.is_file() else None,
        "output_timing_cache": cache,
    }


def lora_arguments(target: TensorrtLlmTarget) -> dict[str, Any]:
    """Return what build_and_save is told of adapters; it reads it with lora_plugin alone."""
    return {
        "lora_dir": [*target.lora_dir] or None,
        "lora_ckpt_source": "hf",
        "max_lora_rank": target.max_lora_rank,
        "lora_target_modules": [*target.lora_target_modules] or None,
    }


def plugin_words(limits: BuildLimits) -> dict[str, str | int]:
    """Return what PluginConfig is told, in the words of trtllm-build's flags."""
    words = {name: plugin_word(value) for name, value in limits.kernel_choices.items()}
    return {"tokens_per_block": limits.tokens_per_block, **words}
