"""Every quantization the tensorrt targets have: its network against the ops' torch references."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llmc.builders import pipeline
from llmc.builders.network import build_network
from llmc.builders.targets.tensorrt_stepping import SteppedNetwork, lower_ranks
from llmc.checkpoint import Checkpoint
from llmc.log import NullProgress
from llmc.plugins.linear.tensorrt_quantized import FORMATS
from llmc.recipes.loader import Override, load_recipe, parse_set
from llmc.runtime.batch import Batch
from tests.builders.targets.tensorrt_networks import TOOLKIT
from tests.builders.tiny_hf import write_model
from tests.plugins.interpreter import Rank, run_step

TOKENS = np.random.default_rng(2).integers(0, 64, 40).tolist()
NUM_CONTEXT = 30

WEIGHTS = (6e-3, 1.5e-3)
"""Of the logits' spread, at most and on average. Scales of groups are rounded to float16 in the
network, 2^-11 of each, where the checkpoint has more; where not, the difference is 1e-5."""
ACTIVATIONS = (0.2, 0.03)
"""An activation between two steps of 8 or 4 bits goes either way when sums differ in the last bit,
or when smoothing factors are rounded to float16; where none does, the difference is 1e-5."""


def convert(directory: Path, algo: str, layout: str | None) -> Checkpoint:
    model = write_model(
        directory / "model", hidden_size=256, intermediate_size=256, num_hidden_layers=2
    )
    overrides = [Override(path=("model",), value=str(model), source="test")]
    settings = ["dtype=float16", f"quantization.algo={algo}"]
    if layout is not None:
        settings.append(f"quantization.layout={layout}")
    pipeline.build(
        load_recipe(None, [*overrides, *map(parse_set, settings)]),
        directory / "out",
        until="checkpoint",
        progress=NullProgress(),
        report=lambda _: None,
        workers=1,
    )
    return Checkpoint.open(directory / "out" / "checkpoint")


def reference_logits(checkpoint: Checkpoint) -> Any:
    """Return logits [len(TOKENS), vocab] by the torch references, in one step."""
    network, count = build_network(checkpoint.config, 0), len(TOKENS)
    read = checkpoint.rank(0).read
    rank = Rank.make(network, read, num_blocks=1, tokens_per_block=count)
    rows = np.arange(count, dtype=np.int32)
    batch = Batch(
        token_ids=np.array(TOKENS, np.int32),
        positions=rows,
        query_start=np.array([0, count], np.int32),
        context_lens=np.array([count], np.int32),
        prompt_lens=np.array([count], np.int32),
        block_tables=np.zeros((1, 1), np.int32),
        logits_rows=rows,
    )
    with torch.inference_mode():
        return run_step([rank], batch).numpy()


@pytest.mark.parametrize(
    ("algo", "layout"),
    [
        *((algo, None) for algo in FORMATS),
        *((algo, layout) for algo in ("W8A16", "W4A16") for layout in ("sm80", "sm90")),
    ],
)
def test_quantized_network_is_the_reference(algo: str, layout: str | None, tmp_path: Path) -> None:
    checkpoint = convert(tmp_path, algo, layout)
    if layout is not None:
        assert checkpoint.config.layout == layout
    networks = list(lower_ranks(TOOLKIT, checkpoint, max_seq_len=64))
    stepped = SteppedNetwork(networks, mode="ideal")
    logits = stepped.read(TOKENS, num_context=NUM_CONTEXT)
    wanted = reference_logits(checkpoint)
    difference = np.abs(logits[:, : wanted.shape[1]] - wanted) / wanted.std()
    most, mean = WEIGHTS if "A16" in algo else ACTIVATIONS
    assert difference.max() < most and difference.mean() < mean
