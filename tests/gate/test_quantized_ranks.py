"""Every quantization split over two ranks, from recipe to logits, beside the unsplit engine."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from llmc.gate.metrics import Float32Array
from llmc.gate.reference import open_engine
from llmc.quant import FORMATS
from llmc.quant.format import load_format
from llmc.runtime.batch import Batch
from tests.builders.tiny_hf import write_model
from tests.gate import built

LENGTH = 40


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose halves are whole groups of 128, and a text to calibrate on."""
    directory = tmp_path_factory.mktemp("ranks")
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}
    write_model(directory / "model", torch_dtype="bfloat16", **sizes)
    built.write_text(directory / "calibration.txt", seed=3)
    return directory


def logits(directory: Path, name: str, *settings: str) -> Float32Array:
    """Build and return the logits of LENGTH tokens, read in two steps."""
    text = f"quantization.calibration.data={directory / 'calibration.txt'}"
    recipe = built.recipe(directory / "model", "build.max_seq_len=64", text, *settings)
    ids = np.random.default_rng(5).integers(0, 64, LENGTH).astype(np.int32)
    parts = []
    with closing(open_engine(built.build(recipe, directory / name))) as engine:
        for start, stop in ((0, 25), (25, LENGTH)):
            positions = np.arange(start, stop, dtype=np.int32)
            num_blocks = -(-LENGTH // engine.limits.tokens_per_block)
            batch = Batch(
                token_ids=ids[start:stop],
                positions=positions,
                query_start=np.array([0, len(positions)], np.int32),
                context_lens=np.array([stop], np.int32),
                block_tables=np.arange(num_blocks, dtype=np.int32)[None],
                logits_rows=positions - start,
                prompt_lens=np.array([LENGTH], np.int32),
            )
            parts.append(engine.forward(batch).copy())
    return np.concatenate(parts)


@pytest.fixture(scope="module")
def exact(directory: Path) -> Float32Array:
    return logits(directory, "float32", "dtype=float32")


@pytest.mark.parametrize(
    ("algo", "kv_cache"),
    [*((algo, None) for algo in FORMATS), ("W8A16", "INT8"), ("W4A16_AWQ", "FP8")],
)
def test_two_ranks_compute_what_one_does(
    algo: str, kv_cache: str | None, directory: Path, exact: Float32Array
) -> None:
    form = load_format(algo)
    settings = ["dtype=bfloat16", f"quantization.algo={algo}"]
    if kv_cache is not None:
        settings.append(f"quantization.kv_cache={kv_cache}")
    name = f"{algo}-{kv_cache}"
    one = logits(directory, f"{name}-1", *settings)
    two = logits(directory, f"{name}-2", *settings, "mapping.tp=2")
    lost = np.abs(one - exact).mean()
    assert lost > 0
    if form.after_split or form.activation.startswith("per-token"):
        # Every rank has scales of its own: another rounding, not a coarser one.
        assert np.abs(two - exact).mean() < 1.1 * lost
        assert np.abs(two - one).mean() < 1.6 * lost
    else:
        # The same numbers, summed in another order; an input between two steps may go either way.
        assert np.abs(two - one).mean() < 0.1 * lost
