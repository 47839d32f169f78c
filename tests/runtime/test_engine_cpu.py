"""The CPU engine against transformers on tiny random llamas, and its promises about batches."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llmc.errors import CheckpointError, UnsupportedError
from llmc.quant import w8a16
from llmc.runtime.engine import KvCacheConfig, load_engine
from llmc.runtime.engines import cpu
from llmc.runtime.engines.cpu_memory import plan_kv_blocks
from tests.plugins.kernels_cpu import INSTRUCTION_SETS
from tests.plugins.tiny_llama import VARIANTS, TinyLlama
from tests.runtime.cpu_engines import LIMITS, build_engine, ragged, run
from tests.runtime.lockstep import ThreadRanks

KV = KvCacheConfig(max_tokens=1024)
LENGTHS = (90, 41, 7)
CHUNKS = ((60, 9, 0), (1, 31, 0), (28, 1, 5), (1, 0, 1), (0, 0, 1))


def make(name: str = "gqa", **changes: Any) -> TinyLlama:
    return TinyLlama.make(**{"max_position_embeddings": 256, **VARIANTS[name], **changes})


def sequences_of(tiny: TinyLlama) -> list[list[int]]:
    draw = np.random.default_rng(7).integers
    return [draw(0, tiny.arch.vocab_size, length).tolist() for length in LENGTHS]


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_transformers(variant: str, tmp_path: Path) -> None:
    """In ragged steps, float32: only the order of sums differs; logits are of the order of 5."""
    tiny = make(variant)
    engine = cpu.load(build_engine(tiny, tiny.config(), tmp_path), kv=KV, threads=2)
    sequences = sequences_of(tiny)
    for found, sequence in zip(run(engine, sequences, CHUNKS), sequences, strict=True):
        np.testing.assert_allclose(found, tiny.logits(sequence).numpy(), rtol=0, atol=2e-4)
    engine.close()


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "float16", "W8A16"))
def test_request_does_not_depend_on_its_batch(
    instruction_set: str, dtype: str, tmp_path: Path
) -> None:
    """Bit for bit: alone, in a mix, chunked or not, wherever its blocks lie."""
    tiny = make()
    config = tiny.config(quant="W8A16") if dtype == "W8A16" else replace(tiny.config(), dtype=dtype)
    directory = build_engine(tiny, config, tmp_path)
    engine = cpu.load(directory, kv=KV, threads=2, instruction_set=instruction_set)
    sequences = sequences_of(tiny)
    mixed = run(engine, sequences, CHUNKS)
    for sequence, found in zip(sequences, mixed, strict=True):
        alone = run(engine, [sequence], [(len(sequence),)], seed=9)[0]
        np.testing.assert_array_equal(found, alone)
        last = [(len(sequence) - 3,), (1,), (1,), (1,)]
        np.testing.assert_array_equal(run(engine, [sequence], last)[0], alone)
    engine.close()


def test_dtypes_stay_near_transformers(tmp_path: Path) -> None:
    """Weights and KV rounded to half precision: relative to the spread of the logits."""
    tiny = make()
    sequences = sequences_of(tiny)
    expected = tiny.logits(sequences[0]).numpy()
    for dtype, bound in (("float16", 0.01), ("bfloat16", 0.08)):
        config = replace(tiny.config(), dtype=dtype)
        engine = cpu.load(build_engine(tiny, config, tmp_path / dtype), kv=KV, threads=1)
        found = run(engine, sequences, CHUNKS)[0]
        assert np.abs(found - expected).mean() < bound * expected.std()
        engine.close()


def test_w8a16_equals_its_dequantized_weights(tmp_path: Path) -> None:
    """The quantized engine against transformers on quantize → dequantize of the same weights."""
    tiny = make()
    directory = build_engine(tiny, tiny.config(quant="W8A16"), tmp_path)
    for name, parameter in tiny.model.named_parameters():
        if "_proj" in name:
            quantized = w8a16.quantize(parameter.detach().numpy())
            parameter.data = torch.from_numpy(w8a16.dequantize(*quantized))
    engine = cpu.load(directory, kv=KV, threads=2)
    sequences = sequences_of(tiny)
    # What is left is the activations' 16-bit rounding (bf16 with AMX), over four layers.
    atol = 0.3 if engine.instruction_set == "amx" else 5e-3
    for found, sequence in zip(run(engine, sequences, CHUNKS), sequences, strict=True):
        np.testing.assert_allclose(found, tiny.logits(sequence).numpy(), rtol=0, atol=atol)
    engine.close()


def test_few_logits_and_none(tmp_path: Path) -> None:
    tiny = make("odd_vocabulary")
    engine = cpu.load(build_engine(tiny, tiny.config(), tmp_path), kv=KV, threads=2)
    sequence = sequences_of(tiny)[1]
    (batch, _), *_ = ragged([sequence], [(len(sequence),)])
    every = engine.forward(batch).copy()
    some = replace(batch, logits_rows=np.array([3, 40], np.int32))
    np.testing.assert_array_equal(engine.forward(some), every[[3, 40]])
    none = replace(batch, logits_rows=np.empty(0, np.int32))
    assert engine.forward(none).shape == (0, tiny.arch.vocab_size)
    assert set(engine.profile(some)) >= {"linear", "attention", "rms_norm"}
    engine.close()


@pytest.mark.parametrize(
    "split", ({"tp": 2}, {"pp": 2}, {"tp": 2, "use_parallel_embedding": True}), ids=str
)
def test_several_ranks(split: dict[str, Any], tmp_path: Path) -> None:
    """Ranks in lockstep; an odd vocabulary makes the last rank's logits padded."""
    tiny = make("odd_vocabulary")
    config = tiny.config(**split)
    directory = build_engine(tiny, config, tmp_path)
    ranks = ThreadRanks(config.mapping.world_size)
    engines = [
        cpu.load(directory, rank=rank, kv=KV, threads=1, comm=ranks.at(rank))
        for rank in range(config.mapping.world_size)
    ]
    sequences = sequences_of(tiny)
    with ThreadPoolExecutor(len(engines)) as pool:
        for batch, rows in ragged(sequences, CHUNKS):
            found = list(pool.map(_forward(batch), engines))[0]
            for row, (sequence, position) in enumerate(rows):
                expected = tiny.logits(sequences[sequence][: position + 1])[-1].numpy()
                np.testing.assert_allclose(found[row], expected, rtol=0, atol=2e-4)
    for engine in engines:
        engine.close()


def _forward(batch: Any) -> Callable[[Any], Any]:
    return lambda engine: engine.forward(batch).copy()


def test_one_rank_of_several_alone_is_refused(tmp_path: Path) -> None:
    tiny = make()
    directory = build_engine(tiny, tiny.config(tp=2), tmp_path)
    with pytest.raises(UnsupportedError, match="one rank of several"):
        cpu.load(directory, kv=KV)
    (directory / "rank1.engine").rename(directory / "rank0.engine")
    with pytest.raises(CheckpointError, match="holds rank 1, expected rank 0"):
        cpu.load(directory, kv=KV)


def test_loads_through_the_table_with_the_limits_it_was_built_for(tmp_path: Path) -> None:
    tiny = make()
    engine = load_engine(build_engine(tiny, tiny.config(), tmp_path), kv=KV)
    assert engine.limits.max_batch_size == LIMITS.max_batch_size
    assert engine.limits.max_num_tokens == LIMITS.max_num_tokens
    assert engine.limits.vocab_size == tiny.arch.vocab_size
    assert engine.limits.num_blocks == 1024 // LIMITS.tokens_per_block
    engine.close()


def test_kv_pool_size() -> None:
    from llmc.plugins.cpu_program import KvShape

    shape = KvShape(
        num_layers=2, num_kv_heads=3, head_size=80, tokens_per_block=32, dtype="bfloat16"
    )
    # Heads of 80 take the room of 96.
    assert shape.block_bytes == 2 * 3 * 32 * 96 * 2
    limits = {"max_batch_size": 4, "max_seq_len": 100}
    assert plan_kv_blocks(shape, limits, max_tokens=None, free_fraction=0.5) == 16
    assert plan_kv_blocks(shape, limits, max_tokens=200, free_fraction=0.5) == 6
    with pytest.raises(UnsupportedError, match="no block of 32 tokens fits"):
        plan_kv_blocks(shape, limits, max_tokens=31, free_fraction=0.5)
    with pytest.raises(UnsupportedError, match="no block of 32 tokens fits"):
        plan_kv_blocks(shape, limits, max_tokens=None, free_fraction=1e-12)
