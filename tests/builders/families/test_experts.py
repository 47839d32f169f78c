"""Experts in both of Hugging Face's layouts, and in every format they have."""

from pathlib import Path

import numpy as np
import pytest
import torch

from llmc.builders.convert import convert
from llmc.builders.network import build_network
from llmc.builders.quantize.calibration import Calibration
from llmc.checkpoint import Checkpoint, Quantization
from llmc.log import NullProgress
from llmc.mapping import Mapping
from tests.builders.families.test_family_logits import engine_logits
from tests.builders.families.tiny_families import prompt, write_case
from tests.goldens.golden import write_safetensors
from tests.goldens.test_golden_experts import write_words
from tests.plugins.interpreter import Rank, run_step
from tests.plugins.ragged import TOKENS_PER_BLOCK, ragged_steps

STACKED = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3")


def checkpoint_of(model_dir: Path, output: Path, mapping: Mapping) -> Checkpoint:
    output.mkdir()
    convert(
        model_dir,
        output,
        dtype=None,
        mapping=mapping,
        quantization=Quantization(),
        progress=NullProgress(),
        workers=2,
    )
    return Checkpoint.open(output)


@pytest.mark.parametrize("name", STACKED)
def test_stacked_experts_are_the_same_checkpoint(name: str, tmp_path: Path) -> None:
    """transformers 5 saves experts one by one, but holds them stacked, and may save them so."""
    apart, model = write_case(tmp_path / "apart", name)
    together = tmp_path / "together"
    together.mkdir()
    (together / "config.json").write_bytes((apart / "config.json").read_bytes())
    held = {key: value.numpy() for key, value in model.state_dict().items()}
    assert any(key.endswith("experts.gate_up_proj") for key in held)
    write_safetensors(together / "model.safetensors", held)
    mapping = Mapping(tp_size=4, moe_tp_size=2, moe_ep_size=2)
    one = checkpoint_of(apart, tmp_path / "one", mapping)
    other = checkpoint_of(together, tmp_path / "other", mapping)
    for rank in range(4):
        for tensor in one.rank(rank).infos:
            np.testing.assert_array_equal(
                one.rank(rank).read(tensor), other.rank(rank).read(tensor), tensor
            )


TOLERANCES = {"W8A16": 1e-2, "W4A16": 1e-2, "FP8": 0.1}
"""Of the spread: rows are rounded to 16 bits beside integers; an input between two e4m3 numbers may
become either, and another expert follow from it."""


@pytest.mark.parametrize("algo", TOLERANCES)
@pytest.mark.parametrize("mapping", [Mapping(), Mapping(tp_size=2, moe_ep_size=2)])
def test_quantized_experts_run_as_their_reference(
    algo: str, mapping: Mapping, tmp_path: Path
) -> None:
    model_dir, model = write_case(tmp_path / "model", "qwen2_moe")
    write_words(model_dir, 101)
    (tmp_path / "text.txt").write_text(" ".join(f"w{i * 37 % 101}" for i in range(400)))
    ids = prompt(101)
    found, _ = engine_logits(
        model_dir,
        tmp_path,
        [ids, ids[10:20]],
        mapping,
        quantization=Quantization.of(algo),
        calibration=Calibration(
            state_parent=tmp_path, key="k", data=tmp_path / "text.txt", samples=4, max_tokens=64
        ),
    )
    checkpoint = Checkpoint.open(tmp_path / "checkpoint")
    ranks = [
        Rank.make(
            build_network(checkpoint.config, rank),
            checkpoint.rank(rank).read,
            num_blocks=len(ids),
            tokens_per_block=TOKENS_PER_BLOCK,
        )
        for rank in range(mapping.world_size)
    ]
    ((batch, _),) = ragged_steps([ids], [(len(ids),)])
    want = run_step(ranks, batch).numpy()
    error = np.sqrt(np.mean((found - want) ** 2)) / want.std()
    assert error < TOLERANCES[algo]
    with torch.no_grad():
        plain = model(torch.tensor([ids])).logits[0].numpy()
    assert np.sqrt(np.mean((plain - want) ** 2)) / want.std() > 1e-2  # it is quantized
