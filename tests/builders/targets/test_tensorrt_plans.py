"""Plans of networks that the interpreter alone would not prove: what the builder makes of them.

Shapes and placeholders only; heads of 64, so that there is a fused kernel to be found.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmc.builders.network import build_network
from llmc.builders.shapes import config_of
from llmc.builders.targets import BuildLimits
from llmc.builders.targets.tensorrt_compile import PROFILES, compile_plan
from llmc.builders.targets.tensorrt_evidence import expected_of, gather
from llmc.builders.targets.tensorrt_network import lower_network
from llmc.checkpoint import CheckpointConfig, Quantization
from llmc.mapping import Mapping
from llmc.recipes.loader import Override, load_recipe
from tests.builders.families.tiny_families import write_case
from tests.builders.targets.tensorrt_networks import TOOLKIT
from tests.plugins.tiny_llama import TinyLlama

LIMITS = BuildLimits(
    max_batch_size=4, max_num_tokens=64, max_input_len=63, max_seq_len=64, tokens_per_block=32
)


def llama(**changes: Any) -> CheckpointConfig:
    """Return the config of one layer in float16; `changes` are of its arch."""
    tiny = TinyLlama.make(
        hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4
    )
    config: CheckpointConfig = tiny.config()
    return replace(config, arch=replace(tiny.arch, **changes), dtype="float16")


def split() -> CheckpointConfig:
    return replace(llama(), mapping=Mapping(tp_size=2))


def windowed() -> CheckpointConfig:
    return llama(sliding_window=16)


def quantized(algo: str) -> CheckpointConfig:
    return replace(llama(), quantization=Quantization.of(algo, None))


def gemma2(directory: Path) -> CheckpointConfig:
    model, _ = write_case(directory, "gemma2")
    override = Override(path=("model",), value=str(model), source="test")
    config = config_of(load_recipe(None, [override]))
    windows = config.arch.layer_windows
    assert windows is not None and windows[0] != windows[1]
    arch = replace(config.arch, num_hidden_layers=2, layer_windows=windows[:2])
    return replace(config, arch=arch, dtype="float16")


def build(config: CheckpointConfig, path: Path) -> list[dict[str, Any]]:
    """Build rank 0's plan for 89, expect no contradiction, and return what its profiles launch."""
    lowered = lower_network(TOOLKIT, config, 0, max_seq_len=LIMITS.max_seq_len, weights="refit")
    compile_plan(
        TOOLKIT,
        lowered,
        path,
        capabilities=(89,),
        limits=LIMITS,
        weights="refit",
        step=lambda phase, done, total: None,
    )
    facts, problems = gather(path, expected_of(build_network(config, 0), config.dtype), PROFILES)
    assert problems == []
    programs: dict[str, dict[str, Any]] = facts["programs"]
    assert list(programs) == list(PROFILES)
    return list(programs.values())


def test_split_plan_has_its_collectives(tmp_path: Path) -> None:
    """Attention and MLP are summed, logits gathered; two heads of a rank have no fused kernel."""
    for program in build(split(), tmp_path / "plan"):
        assert program["collectives"] == {"comm_allreduce": 2, "comm_allgather": 1}


def test_sliding_window_is_fused(tmp_path: Path) -> None:
    for program in build(windowed(), tmp_path / "plan"):
        assert sum(program["attention"].values()) == 1


def test_soft_capped_attention_builds(tmp_path: Path) -> None:
    for program in build(gemma2(tmp_path), tmp_path / "plan"):
        # Products of scores and of values, in each layer, beside those of weights.
        assert program["gemms"]["half x half"] > 4 and not program["attention"]


@pytest.mark.parametrize(
    "algo", ["W8A8_SQ_PER_TENSOR_PLUGIN", "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN"]
)
def test_plugin_formats_multiply_integers(tmp_path: Path, algo: str) -> None:
    for program in build(quantized(algo), tmp_path / "plan"):
        assert program["gemms"]["int8 x int8"] >= 4
