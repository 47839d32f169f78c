"""The trtllm-build command line of a recipe: every limit written out, and what the recipe asks for.

Source: tensorrt_llm/commands/build.py and plugin/plugin.py (add_plugin_argument).
"""

from llmc.builders.targets import BuildLimits
from llmc.builders.targets.tensorrt_llm.build_options import PLUGIN_OPTIONS
from llmc.plugins.tensorrt_llm_options import Value
from llmc.recipes.tensorrt_llm import TensorrtLlmTarget


def build_command(
    limits: BuildLimits, target: TensorrtLlmTarget, checkpoint_dir: str, output_dir: str
) -> list[str]:
    """Return the arguments, trtllm-build first."""
    arguments: list[tuple[str, Value]] = [
        ("checkpoint_dir", checkpoint_dir),
        ("output_dir", output_dir),
        ("max_batch_size", limits.max_batch_size),
        ("max_num_tokens", limits.max_num_tokens),
        ("max_input_len", limits.max_input_len),
        ("max_seq_len", limits.max_seq_len),
        ("max_beam_width", target.max_beam_width),
        ("kv_cache_type", "paged"),
        ("workers", target.workers),
        ("tokens_per_block", limits.tokens_per_block),
    ]
    if target.timing_cache is not None:
        arguments += [
            ("input_timing_cache", target.timing_cache),
            ("output_timing_cache", target.timing_cache),
        ]
    choices = dict(limits.kernel_choices)
    fast_build = choices.pop("manage_weights", False)
    for name, choice in choices.items():
        assert PLUGIN_OPTIONS[name].flag, name
        arguments.append((name, plugin_word(choice)))
    command = ["trtllm-build"]
    for name, value in arguments:
        command += [f"--{name}", str(value)]
    switches = (
        ("--fast_build", fast_build),
        ("--strip_plan", target.strip_plan),
        ("--weight_streaming", target.weight_streaming),
    )
    return [*command, *(flag for flag, is_on in switches if is_on)]


def plugin_word(value: bool | str) -> str:
    """Return a plugin option's value as trtllm-build's flags have it."""
    if isinstance(value, bool):
        return "enable" if value else "disable"
    return "disable" if value == "none" else value
