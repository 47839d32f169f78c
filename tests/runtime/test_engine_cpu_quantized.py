"""Quantized CPU engines against the torch references on the same checkpoint, end to end."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.builders.network import build_network
from llmc.checkpoint import tensor_schema
from llmc.dtypes import numpy_dtype
from llmc.quant import FORMATS
from llmc.runtime.engine import KvCacheConfig
from llmc.runtime.engines import cpu
from tests.plugins.interpreter import Rank, run_step
from tests.plugins.quantized_llama import QuantizedLlama
from tests.runtime.cpu_engines import LIMITS, TOKENS_PER_BLOCK, build_engine, ragged, run

KV = KvCacheConfig(max_tokens=1024)
LENGTHS = (50, 17)
CHUNKS = ((40, 0), (1, 16), (9, 1))


@pytest.fixture(scope="module")
def tiny() -> QuantizedLlama:
    return QuantizedLlama.make()


def sequences_of(tiny: QuantizedLlama) -> list[list[int]]:
    draw = np.random.default_rng(7).integers
    return [draw(0, tiny.arch.vocab_size, length).tolist() for length in LENGTHS]


def expected(tiny: QuantizedLlama, config: Any) -> list[Any]:
    """Return the references' logits [length, vocab] of each sequence."""
    network = build_network(config, 0)
    tensors = tiny.rank_tensors(config, 0)
    schema = tensor_schema(config, 0)
    stored = {name: tensors[name].astype(numpy_dtype(info.dtype)) for name, info in schema.items()}
    rank = Rank.make(network, stored.__getitem__, num_blocks=8, tokens_per_block=TOKENS_PER_BLOCK)
    found = []
    for sequence in sequences_of(tiny):
        (batch, _), *_ = ragged([sequence], [(len(sequence),)])
        found.append(run_step([rank], batch).numpy())
    return found


def assert_near(found: Any, wanted: Any, unquantized: Any) -> None:
    """The engine has the format's error, not one of its own: sums in another order, and now and
    then an input that this puts on the other side of a step."""
    error = np.abs(wanted - unquantized).mean()
    assert 0.01 < error < 0.7 * unquantized.std()
    assert np.abs(found - wanted).mean() < 0.03 * error


@pytest.mark.parametrize("algo", FORMATS)
def test_engine_equals_references(algo: str, tiny: QuantizedLlama, tmp_path: Path) -> None:
    """And every row is the same bits alone, in a mix and chunked."""
    config = tiny.quantized_config(algo)
    limits = replace(LIMITS, kv_cache_dtype="float32")
    directory = build_engine(tiny, config, tmp_path, limits=limits)
    engine = cpu.load(directory, kv=KV, threads=2, instruction_set="portable")
    sequences = sequences_of(tiny)
    mixed = run(engine, sequences, CHUNKS)
    for sequence, found, wanted in zip(sequences, mixed, expected(tiny, config), strict=True):
        assert_near(found, wanted, tiny.logits(sequence).numpy())
        alone = run(engine, [sequence], [(len(sequence),)], seed=9)[0]
        np.testing.assert_array_equal(found, alone)
    engine.close()


@pytest.mark.parametrize("kv", ("INT8", "FP8"))
def test_kv_cache_of_one_byte(kv: str, tiny: QuantizedLlama, tmp_path: Path) -> None:
    config = tiny.quantized_config(None, kv)
    directory = build_engine(tiny, config, tmp_path)
    engine = cpu.load(directory, kv=KV, threads=2)
    sequences = sequences_of(tiny)
    mixed = run(engine, sequences, CHUNKS)
    for sequence, found, wanted in zip(sequences, mixed, expected(tiny, config), strict=True):
        assert_near(found, wanted, tiny.logits(sequence).numpy())
        alone = run(engine, [sequence], [(len(sequence),)], seed=9)[0]
        np.testing.assert_array_equal(found, alone)
    engine.close()
