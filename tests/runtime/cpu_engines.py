"""Builds CPU engines of tiny llamas and steps them over ragged batches."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.builders.targets import BuildLimits, cpu
from llmc.checkpoint import Checkpoint, tensor_schema
from llmc.dtypes import numpy_dtype
from llmc.log import NullProgress
from llmc.runtime.batch import Batch
from llmc.weights import SafetensorsWriter
from tests.plugins.ragged import ragged_steps
from tests.plugins.tiny_llama import TinyLlama

TOKENS_PER_BLOCK = 32
LIMITS = BuildLimits(
    max_batch_size=8,
    max_num_tokens=160,
    max_input_len=200,
    max_seq_len=256,
    tokens_per_block=TOKENS_PER_BLOCK,
)


def write_checkpoint(tiny: TinyLlama, config: Any, directory: Path) -> Checkpoint:
    """Write a TensorRT-LLM checkpoint of `tiny` in `config.dtype`."""
    import json

    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config.to_json()))
    for rank in range(config.num_rank_files):
        tensors = tiny.rank_tensors(config, rank)
        infos = list(tensor_schema(config, rank).values())
        with SafetensorsWriter(directory / f"rank{rank}.safetensors", infos) as writer:
            for info in infos:
                array = tensors[info.name].astype(numpy_dtype(info.dtype), order="C")
                writer.write(info.name, array)
    return Checkpoint.open(directory)


def build_engine(
    tiny: TinyLlama, config: Any, directory: Path, *, limits: BuildLimits = LIMITS
) -> Path:
    """Write checkpoint and engine under `directory`; return the engine's directory."""
    checkpoint = write_checkpoint(tiny, config, directory / "checkpoint")
    engine = directory / "engine"
    engine.mkdir()
    cpu.build(checkpoint, engine, limits=limits, progress=NullProgress())
    return engine


def ragged(
    sequences: Sequence[Sequence[int]],
    chunks: Sequence[Sequence[int]],
    *,
    seed: int = 0,
    prompts: Sequence[int] | None = None,
) -> list[tuple[Batch, list[tuple[int, int]]]]:
    """Return `ragged_steps` over blocks of the engines' size."""
    return list(
        ragged_steps(
            sequences, chunks, seed=seed, tokens_per_block=TOKENS_PER_BLOCK, prompts=prompts
        )
    )


def run(
    engine: Any,
    sequences: Sequence[Sequence[int]],
    chunks: Sequence[Sequence[int]],
    *,
    seed: int = 0,
    prompts: Sequence[int] | None = None,
) -> list[npt.NDArray[np.float32]]:
    """Return logits [length, vocab] of each sequence, gathered from ragged steps."""
    vocab = engine.limits.vocab_size
    out = [np.full((len(sequence), vocab), np.nan, np.float32) for sequence in sequences]
    for batch, rows in ragged(sequences, chunks, seed=seed, prompts=prompts):
        logits = engine.forward(batch)
        for row, (sequence, position) in enumerate(rows):
            out[sequence][position] = logits[row]
    return out
