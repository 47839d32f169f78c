"""A KV cache of FP8 on the tensorrt targets: attention multiplies in FP8, or it is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmc.builders import pipeline
from llmc.builders.network import build_network
from llmc.builders.targets import BuildLimits
from llmc.builders.targets.tensorrt_directory import network_reasons
from llmc.builders.targets.tensorrt_evidence import contradictions, expected_of
from llmc.builders.targets.tensorrt_interpreter.reader import read_network
from llmc.builders.targets.tensorrt_plan import read_plan
from llmc.builders.targets.tensorrt_stepping import SteppedNetwork, lower_ranks
from llmc.checkpoint import Checkpoint
from llmc.gate.network import ROUNDED, open_cpu_reference
from llmc.log import NullProgress
from llmc.recipes.loader import Override, load_recipe, parse_set
from llmc.runtime.batch import Batch
from tests.builders.targets.tensorrt_networks import NUM_CONTEXT, TOKENS, TOOLKIT
from tests.builders.tiny_hf import write_model

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `llmc build` makes of a tiny model with an FP8 KV cache, for 89."""
    root = tmp_path_factory.mktemp("fp8")
    model = write_model(root / "model", **SIZES)
    settings = (
        *("dtype=float16", "quantization.kv_cache=FP8", "build.max_batch_size=4"),
        *("build.max_seq_len=64", "build.max_num_tokens=64"),
        *("target.kind=tensorrt-rtx", "target.compute_capabilities=[89]"),
    )
    override = Override(path=("model",), value=str(model), source="test")
    pipeline.build(
        load_recipe(None, [override, *map(parse_set, settings)]),
        root / "out",
        until="engine",
        progress=NullProgress(),
        report=lambda stage: None,
    )
    return root / "out"


def test_the_plan_shows_attention_in_fp8(built: Path) -> None:
    config = json.loads((built / "engine" / "config.json").read_text())
    for program in config["llmc"]["plans"][0]["programs"].values():
        assert program["fp8_attention"] == sum(program["attention"].values()) == 2
        assert not program["dequantizes"]


def test_the_network_is_the_models(built: Path, tmp_path: Path) -> None:
    """The CPU engine rounds keys and values, the network queries and probabilities, too."""
    checkpoint = Checkpoint.open(built / "checkpoint")
    networks = list(lower_ranks(TOOLKIT, checkpoint, max_seq_len=64))
    layers = read_network(networks[0].network).layers
    rounded = [layer.attrs for layer in layers if layer.kind == "ATTENTION"]
    assert [attrs["normalization_quantize_to_type"] for attrs in rounded] == ["FP8"] * 2
    logits = SteppedNetwork(networks, mode="ideal").read(TOKENS, num_context=NUM_CONTEXT)
    engine = open_cpu_reference(checkpoint, tmp_path, NullProgress())
    count = len(TOKENS)
    batch = Batch(
        token_ids=np.array(TOKENS, np.int32),
        positions=np.arange(count, dtype=np.int32),
        query_start=np.array([0, count], np.int32),
        context_lens=np.array([count], np.int32),
        block_tables=np.zeros((1, engine.limits.max_blocks_per_sequence), np.int32),
        logits_rows=np.arange(count, dtype=np.int32),
        prompt_lens=np.array([count], np.int32),
    )
    wanted = engine.forward(batch)
    difference = np.abs(logits[:, : wanted.shape[1]] - wanted)
    assert 0 < difference.max() < ROUNDED.max_difference * wanted.std()
    assert difference.mean() < ROUNDED.mean_difference * wanted.std()
    engine.close()


def test_attention_in_16_bits_is_seen_and_refused(built: Path) -> None:
    config = Checkpoint.open(built / "checkpoint").config
    expected = expected_of(build_network(config, 0), config.dtype, embeds=True)
    program = read_plan(built / "engine" / "rank0.sm89.engine").programs[0]
    assert contradictions(program, expected) == []
    expected.fp8_attentions += 1
    assert contradictions(program, expected) == ["2 attention kernels in FP8, expected 3"]
    wide = replace(config, dtype="float32")
    limits = BuildLimits(
        max_batch_size=1, max_num_tokens=8, max_input_len=8, max_seq_len=8, tokens_per_block=32
    )
    reasons = list(network_reasons(wide, limits, "tensorrt", fp8_with=lambda: "embed"))
    assert any("attention would be in 16 bits" in reason for reason in reasons)
