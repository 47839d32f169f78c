"""The trtllm-build command line of a recipe: every limit written out, and what the recipe asks for.

Source: tensorrt_llm/commands/build.py and plugin/plugin.py (add_plugin_argument).
"""

from llmc.builders.targets import BuildLimits
from llmc.builders.targets.tensorrt_llm.build_options import PLUGIN_OPTIONS
from llmc.plugins.tensorrt_llm_options import Value
from llmc.recipes.tensorrt_llm import TensorrtLlmTarget


def build_values(limits: BuildLimits, target: TensorrtLlmTarget) -> dict[str, Value]:
    """Return what BuildConfig is told, beside adapters, timing cache and plugins."""
    return {
        "max_batch_size": limits.max_batch_size,
        "max_num_tokens": limits.max_num_tokens,
        "max_input_len": limits.max_input_len,
        "max_seq_len": limits.max_seq_len,
        "max_beam_width": target.max_beam_width,
        "opt_num_tokens": target.opt_num_tokens,
        "max_prompt_embedding_table_size": target.max_prompt_embedding_table_size,
        "gather_context_logits": target.gather_context_logits,
        "weight_streaming": target.weight_streaming,
    }


def build_command(
    limits: BuildLimits, target: TensorrtLlmTarget, checkpoint_dir: str, output_dir: str
) -> list[str]:
    """Return the arguments, trtllm-build first."""
    choices = dict(limits.kernel_choices)
    values = {
        "checkpoint_dir": checkpoint_dir,
        "output_dir": output_dir,
        **build_values(limits, target),
        "kv_cache_type": "paged",
        "workers": target.workers,
        "tokens_per_block": limits.tokens_per_block,
        "input_timing_cache": target.timing_cache,
        "output_timing_cache": target.timing_cache,
        "strip_plan": target.strip_plan,
        "fast_build": bool(choices.pop("manage_weights", False)),
    }
    command = ["trtllm-build"]
    for name, value in values.items():
        if value is True:
            command.append(f"--{name}")
        elif value not in (None, False):
            command += [f"--{name}", str(value)]
    if target.lora_target_modules or target.lora_dir:
        command += ["--max_lora_rank", str(target.max_lora_rank)]
    for name, words in (
        ("lora_target_modules", target.lora_target_modules),
        ("lora_dir", target.lora_dir),
    ):
        command += [f"--{name}", *words] if words else []
    for name, choice in choices.items():
        assert PLUGIN_OPTIONS[name].flag, name
        command += [f"--{name}", plugin_word(choice)]
    return command


def plugin_word(value: bool | str) -> str:
    """Return a plugin option's value as trtllm-build's flags have it."""
    if isinstance(value, bool):
        return "enable" if value else "disable"
    return "disable" if value == "none" else value
