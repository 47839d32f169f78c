"""The real model's TensorRT network, evaluated on this CPU, against transformers in float32."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from llmc.builders import pipeline
from llmc.builders.targets.tensorrt_stepping import SteppedNetwork, lower_ranks
from llmc.builders.targets.tensorrt_toolkit import Toolkit
from llmc.checkpoint import Checkpoint
from llmc.log import NullProgress
from llmc.recipes.schema import Recipe

TEXT = (
    "The history of printing begins with woodblock printing in China. Later, in Europe, Johannes"
    " Gutenberg developed movable type, and books became cheaper; the spread of ideas that followed"
    " changed the world more than any war before it had done."
)
NUM_GENERATED = 16


@pytest.mark.slow
def test_float16_network_is_transformers(smollm2: Path, tmp_path: Path) -> None:
    """Prefill, then 16 steps of one token through the cache; the logits spread by 6."""
    trt = pytest.importorskip("tensorrt_rtx_bindings", reason="needs llmc[rtx]")
    recipe = Recipe.model_validate({"model": smollm2, "dtype": "float16"})
    pipeline.build(
        recipe,
        tmp_path,
        until="checkpoint",
        progress=NullProgress(),
        report=lambda _: None,
        workers=1,
    )
    tokens = AutoTokenizer.from_pretrained(smollm2)(TEXT).input_ids
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    with torch.no_grad():
        wanted = model(torch.tensor([tokens])).logits[0].numpy()
    toolkit = Toolkit.start(trt)
    checkpoint = Checkpoint.open(tmp_path / "checkpoint")
    networks = list(lower_ranks(toolkit, checkpoint, max_seq_len=128))
    stepped = SteppedNetwork(networks, mode="ideal")
    logits = stepped.read(tokens, num_context=len(tokens) - NUM_GENERATED)
    assert np.abs(logits - wanted).max() < 5e-4
