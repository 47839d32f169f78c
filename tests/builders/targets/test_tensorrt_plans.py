"""Plans of networks that the interpreter alone would not prove: what the builder makes of them.

Placeholders, or weights of one number; heads of 64, so that there is a fused kernel to be found.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.arch import MlaArch, MoeArch
from llmc.builders.network import build_network
from llmc.builders.shapes import config_of
from llmc.builders.targets import BuildLimits
from llmc.builders.targets.tensorrt_compile import PROFILES, compile_plan
from llmc.builders.targets.tensorrt_evidence import expected_of, gather
from llmc.builders.targets.tensorrt_network import Weights, lower_network
from llmc.builders.targets.tensorrt_plan import read_plan
from llmc.checkpoint import CheckpointConfig, Quantization, tensor_schema
from llmc.dtypes import numpy_dtype
from llmc.errors import BuildError
from llmc.mapping import Mapping
from llmc.plugins.attention import tensorrt as lowering
from llmc.recipes.loader import Override, load_recipe
from llmc.weights import SafetensorsFile, SafetensorsWriter
from tests.builders.families.tiny_families import write_case
from tests.builders.targets.tensorrt_networks import TOOLKIT
from tests.plugins.tiny_llama import TinyLlama
from tests.runtime.cpu_engines import write_checkpoint

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


def latent() -> CheckpointConfig:
    """DeepSeek's attention with its sizes of heads: 128 columns and 64 that rotate, 128 of v."""
    mla = MlaArch(
        q_lora_rank=64,
        kv_lora_rank=64,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )
    return llama(
        mla=mla,
        num_key_value_heads=4,
        head_size=192,
        rotary_embedding_dim=64,
        position_embedding_type="rope_gptj",
    )


def quantized(algo: str) -> CheckpointConfig:
    return replace(llama(), quantization=Quantization.of(algo, None))


def experts(algo: str | None) -> CheckpointConfig:
    """Return the config of a layer of four experts with biases, and one for every token."""
    moe = MoeArch(
        num_experts=4,
        top_k=2,
        intermediate_size=128,
        shared_expert_intermediate_size=128,
        shared_expert_gate=True,
        expert_bias=True,
        router_bias=True,
    )
    quantization = Quantization.of(algo, None) if algo else Quantization()
    return replace(llama(moe=moe), quantization=quantization, layout="sm80" if algo else None)


def gemma2(directory: Path) -> CheckpointConfig:
    model, _ = write_case(directory, "gemma2")
    override = Override(path=("model",), value=str(model), source="test")
    config = config_of(load_recipe(None, [override]))
    windows = config.arch.layer_windows
    assert windows is not None and windows[0] != windows[1]
    arch = replace(config.arch, num_hidden_layers=2, layer_windows=windows[:2])
    return replace(config, arch=arch, dtype="float16")


def filled(config: CheckpointConfig, path: Path) -> SafetensorsFile:
    """Write rank 0's weights, all of one number."""
    infos = list(tensor_schema(config, 0).values())
    with SafetensorsWriter(path, infos) as writer:
        for info in infos:
            writer.write(info.name, np.full(info.shape, 0.5, numpy_dtype(info.dtype)))
    return SafetensorsFile.open(path)


def compile_rank(
    config: CheckpointConfig, path: Path, *, weights: Weights, file: SafetensorsFile | None = None
) -> None:
    """Build rank 0's plan for 89."""
    lowered = lower_network(
        TOOLKIT, config, 0, max_seq_len=LIMITS.max_seq_len, weights=weights, file=file
    )
    compile_plan(
        TOOLKIT,
        lowered,
        path,
        capabilities=(89,),
        limits=LIMITS,
        weights=weights,
        step=lambda phase, done, total: None,
    )


def build(
    config: CheckpointConfig, path: Path, *, file: SafetensorsFile | None = None
) -> list[dict[str, Any]]:
    """Build rank 0's plan, of `file` or without weights, expect no contradiction, and return what
    its profiles launch."""
    compile_rank(config, path, weights="refit" if file is None else "embed", file=file)
    expected = expected_of(build_network(config, 0), config.dtype, embeds=file is not None)
    facts, problems = gather(path, expected, PROFILES)
    assert problems == []
    programs: dict[str, dict[str, Any]] = facts["programs"]
    assert list(programs) == list(PROFILES)
    return list(programs.values())


def test_split_plan_has_its_collectives(tmp_path: Path) -> None:
    """Attention and MLP are summed, logits gathered; a rank's two heads are attended to twice."""
    for program in build(split(), tmp_path / "plan"):
        assert program["collectives"] == {"comm_allreduce": 2, "comm_allgather": 1}
        assert sum(program["attention"].values()) == 1


FUSED = {
    "window": llama(sliding_window=16),
    "alibi": llama(position_embedding_type="alibi", rotary_embedding_dim=0),
    "sinks": llama(attention_sinks=True, sliding_window=16),
    "latent": latent(),
}


@pytest.mark.parametrize("name", FUSED)
def test_attention_is_fused(name: str, tmp_path: Path) -> None:
    for program in build(FUSED[name], tmp_path / "plan"):
        assert sum(program["attention"].values()) == 1


@pytest.mark.parametrize("name", ["alibi", "sinks"])
def test_attention_with_a_mask_is_in_fp8(name: str, tmp_path: Path) -> None:
    config = replace(FUSED[name], quantization=Quantization(kv_cache_quant_algo="FP8"))
    for program in build(config, tmp_path / "plan", file=filled(config, tmp_path / "weights")):
        assert program["fp8_attention"] == 1


def test_soft_capped_attention_builds(tmp_path: Path) -> None:
    for program in build(gemma2(tmp_path), tmp_path / "plan"):
        # Products of scores and of values, in each layer, beside those of weights.
        assert program["gemms"]["half x half"] > 4 and not program["attention"]


def test_profiles_share_every_weight(tmp_path: Path) -> None:
    """A second copy of the joined products' weights would make it half as much again."""
    tiny = TinyLlama.make(hidden_size=256, intermediate_size=512, num_hidden_layers=1)
    checkpoint = write_checkpoint(tiny, replace(tiny.config(), dtype="float16"), tmp_path / "in")
    compile_rank(checkpoint.config, tmp_path / "plan", weights="embed", file=checkpoint.rank(0))
    stored = sum(info.num_bytes for info in checkpoint.rank(0).infos.values())
    assert stored < read_plan(tmp_path / "plan").weights_bytes < 1.1 * stored


@pytest.mark.parametrize(
    "algo", ["W8A8_SQ_PER_TENSOR_PLUGIN", "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN"]
)
def test_plugin_formats_multiply_integers(tmp_path: Path, algo: str) -> None:
    for program in build(quantized(algo), tmp_path / "plan"):
        assert program["gemms"]["int8 x int8"] >= 4


@pytest.mark.parametrize(
    ("algo", "label"), [("W8A16", "half x int8"), ("FP8", "fp8_e4m3 x fp8_e4m3")]
)
def test_as_many_kv_heads_keep_their_numbers(tmp_path: Path, algo: str, label: str) -> None:
    """q, k and v of equal size: the builder would make a batch of them, in 16 bits."""
    config = quantized(algo)
    heads = config.arch.num_attention_heads
    config = replace(config, arch=replace(config.arch, num_key_value_heads=heads))
    for program in build(config, tmp_path / "plan", file=filled(config, tmp_path / "weights")):
        assert program["gemms"][label] == 4 and not program["dequantizes"]


@pytest.mark.parametrize(
    ("algo", "label", "least"),
    [
        (None, "half x half", 5),
        ("W8A16", "half x int8", 9),
        ("W4A16", "half x int4", 5),
        ("FP8", "fp8_e4m3 x fp8_e4m3", 5),
    ],
)
def test_experts_multiply_what_they_are_stored_as(
    tmp_path: Path, algo: str | None, label: str, least: int
) -> None:
    """qkv and dense, both products of all experts at once (of W8A16 one for each expert's second)
    and of the shared expert, whose first may be one with theirs. Nothing is only dequantized."""
    for program in build(experts(algo), tmp_path / "plan"):
        assert program["gemms"][label] >= least and not program["dequantizes"]


def test_builders_error_names_the_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FP8 attention of placeholders, which the builder refuses once it looks at types."""
    monkeypatch.setattr(lowering, "is_fp8", lambda call, dtype, *, embeds: True)
    config = replace(llama(), quantization=Quantization(kv_cache_quant_algo="FP8"))
    with pytest.raises(BuildError, match=r"transformer\.layers\.0\.attention/attention"):
        compile_rank(config, tmp_path / "plan", weights="refit")
    assert list(tmp_path.iterdir()) == []
