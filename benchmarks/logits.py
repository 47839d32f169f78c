"""Logits of the CPU engine against transformers on the same weights, and whether greedy agrees.

    python benchmarks/logits.py demo/smollm2

The engine continues every prompt greedily; transformers then reads prompt and continuation in one
pass, so that both have logits for the same positions, and the continuation is transformers' own
exactly when its argmax agrees everywhere. The reference computes in float32, for W8A16 with the
dequantized weights. Transformers' own bfloat16 is printed as a yardstick, over the first prompts.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from llmc.builders.convert import convert
from llmc.builders.targets import BuildLimits, cpu
from llmc.checkpoint import Checkpoint, Quantization
from llmc.log import NullProgress
from llmc.mapping import Mapping
from llmc.quant import w8a16
from llmc.runtime.batch import Batch
from llmc.runtime.engine import Engine, KvCacheConfig, load_engine
from llmc.runtime.tokenizer import Tokenizer

PROMPTS = Path(__file__).parents[1] / "tests" / "data" / "prompts.txt"
TOKENS_PER_BLOCK = 32
MAX_SEQ_LEN = 128
GROUP = 16
YARDSTICK_PROMPTS = 8
"""Enough to compare with; bfloat16 in torch is slow where the CPU has none."""

# Name → (dtype, quant_algo) of the checkpoint.
PRECISIONS: dict[str, tuple[str, str | None]] = {
    "float32": ("float32", None),
    "bfloat16": ("bfloat16", None),
    "W8A16": ("bfloat16", "W8A16"),
}

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """A prompt with the tokens the engine chose, and its logits [len(ids) - 1, vocab]."""

    ids: tuple[int, ...]
    num_prompt: int
    logits: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Differences to the reference over every position of every prompt."""

    max_diff: float
    mean_diff: float
    spread: float
    """Standard deviation of the reference's logits."""
    num_equal: int
    """Prompts whose greedy continuation is the reference's."""
    num_prompts: int


def build_engine(model_dir: Path, work_dir: Path, precision: str) -> Path:
    """Convert and build `model_dir` under `work_dir`; return the engine's directory."""
    dtype, algo = PRECISIONS[precision]
    checkpoint_dir = work_dir / precision / "checkpoint"
    engine_dir = work_dir / precision / "engine"
    for directory in (checkpoint_dir, engine_dir):
        directory.mkdir(parents=True)
    convert(
        model_dir,
        checkpoint_dir,
        dtype=dtype,
        mapping=Mapping(),
        quantization=Quantization(quant_algo=algo),
        progress=NullProgress(),
        workers=2,
    )
    limits = BuildLimits(
        max_batch_size=GROUP,
        max_num_tokens=1024,
        max_input_len=MAX_SEQ_LEN,
        max_seq_len=MAX_SEQ_LEN,
        tokens_per_block=TOKENS_PER_BLOCK,
    )
    cpu.build(Checkpoint.open(checkpoint_dir), engine_dir, limits=limits, progress=NullProgress())
    return engine_dir


def continue_greedily(
    engine: Engine, prompts: Sequence[Sequence[int]], num_tokens: int
) -> Iterator[Continuation]:
    """Yield each prompt with `num_tokens` more, GROUP prompts at a time in one ragged batch."""
    for start in range(0, len(prompts), GROUP):
        group = prompts[start : start + GROUP]
        ids = [list(prompt) for prompt in group]
        logits: list[list[FloatArray]] = [[] for _ in group]
        fresh = [len(prompt) for prompt in group]
        for _ in range(num_tokens):
            batch = _batch(ids, fresh)
            rows = engine.forward(batch).copy()
            for sequence, own in enumerate(np.split(rows, batch.query_start[1:-1])):
                logits[sequence].append(own)
                ids[sequence].append(int(own[-1].argmax()))
            fresh = [1] * len(group)
        for sequence, prompt in enumerate(group):
            yield Continuation(
                ids=tuple(ids[sequence]),
                num_prompt=len(prompt),
                logits=np.concatenate(logits[sequence]),
            )


def _batch(ids: Sequence[Sequence[int]], fresh: Sequence[int]) -> Batch:
    """Return the step that feeds the last `fresh` tokens of each sequence; all rows want logits."""
    blocks = MAX_SEQ_LEN // TOKENS_PER_BLOCK
    num_tokens = sum(fresh)
    positions = [range(len(own) - new, len(own)) for own, new in zip(ids, fresh, strict=True)]
    tables = np.arange(len(ids) * blocks, dtype=np.int32).reshape(len(ids), blocks)
    return Batch(
        token_ids=_int32(
            [own[at] for own, span in zip(ids, positions, strict=True) for at in span]
        ),
        positions=_int32([at for span in positions for at in span]),
        query_start=_int32([0, *np.cumsum(fresh)]),
        context_lens=_int32([len(own) for own in ids]),
        block_tables=tables,
        logits_rows=np.arange(num_tokens, dtype=np.int32),
        prompt_lens=_int32([len(own) for own in ids]),
    )


def _int32(values: Sequence[int]) -> npt.NDArray[np.int32]:
    return np.asarray(values, dtype=np.int32)


def compare(model: Any, continuations: Sequence[Continuation]) -> Comparison:
    """Hold the engine's logits to `model`'s, a transformers model, position by position."""
    max_diff, total, count, equal = 0.0, 0.0, 0, 0
    spreads = []
    for item in continuations:
        with torch.inference_mode():
            logits = model(torch.tensor([item.ids[:-1]])).logits[0].float().numpy()
        diff = np.abs(item.logits - logits)
        max_diff = max(max_diff, float(diff.max()))
        total += float(diff.sum(dtype=np.float64))
        count += diff.size
        spreads.append(float(logits.std()))
        chosen = logits[item.num_prompt - 1 :].argmax(axis=1)
        equal += tuple(chosen.tolist()) == item.ids[item.num_prompt :]
    return Comparison(
        max_diff=max_diff,
        mean_diff=total / count,
        spread=float(np.mean(spreads)),
        num_equal=equal,
        num_prompts=len(continuations),
    )


def load_reference(model_dir: Path, precision: str) -> Any:
    """Return the transformers model in float32, its weights those of `precision`, dequantized."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    dtype, algo = PRECISIONS[precision]
    if algo is not None:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.startswith("model.layers.") and "_proj.weight" in name:
                    values, scale = w8a16.quantize(weight.numpy(), dtype=dtype)
                    weight.copy_(torch.from_numpy(w8a16.dequantize(values, scale)))
    return model


def read_prompts(path: Path, tokenizer: Tokenizer) -> list[list[int]]:
    """Return the ids of each line of `path`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [tokenizer.encode(line) for line in lines if line]


def measure(
    model_dir: Path, precision: str, work_dir: Path, *, num_prompts: int, num_tokens: int
) -> tuple[Comparison, list[Continuation]]:
    """Build, run and compare one precision."""
    prompts = read_prompts(PROMPTS, Tokenizer.open(model_dir))[:num_prompts]
    engine_dir = build_engine(model_dir, work_dir, precision)
    engine = load_engine(engine_dir, kv=KvCacheConfig(max_tokens=GROUP * MAX_SEQ_LEN))
    try:
        continuations = list(continue_greedily(engine, prompts, num_tokens))
    finally:
        engine.close()
    return compare(load_reference(model_dir, precision), continuations), continuations


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path, help="Hugging Face directory of a llama")
    parser.add_argument("--num-prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32, help="greedy tokens after each prompt")
    parser.add_argument("--precision", choices=PRECISIONS, action="append")
    arguments = parser.parse_args()
    transformers_logging.disable_progress_bar()
    print(f"{'':24} {'max diff':>9} {'mean diff':>10} {'spread':>7} greedy equal", flush=True)
    with tempfile.TemporaryDirectory() as work_dir:
        for precision in arguments.precision or PRECISIONS:
            result, continuations = measure(
                arguments.model,
                precision,
                Path(work_dir),
                num_prompts=arguments.num_prompts,
                num_tokens=arguments.tokens,
            )
            _print_row(f"engine {precision}", result)
            if precision == "bfloat16":
                _print_row(
                    "transformers bfloat16",
                    _yardstick(arguments.model, continuations[:YARDSTICK_PROMPTS]),
                )


def _yardstick(model_dir: Path, continuations: Sequence[Continuation]) -> Comparison:
    """Compare transformers in bfloat16 with itself in float32, on the same tokens."""
    rounded = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16).eval()
    own = []
    for item in continuations:
        with torch.inference_mode():
            logits = rounded(torch.tensor([item.ids[:-1]])).logits[0].float().numpy()
        own.append(Continuation(ids=item.ids, num_prompt=item.num_prompt, logits=logits))
    return compare(load_reference(model_dir, "bfloat16"), own)


def _print_row(name: str, result: Comparison) -> None:
    print(
        f"{name:24} {result.max_diff:9.4f} {result.mean_diff:10.5f} {result.spread:7.3f}"
        f" {result.num_equal} of {result.num_prompts}",
        flush=True,
    )


if __name__ == "__main__":
    main()
