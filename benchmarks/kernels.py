"""CPU kernels: matrix products against torch, and whole steps of an engine.

    python benchmarks/kernels.py [--engine OUT/engine] [--threads N] [--rounds 7]

Every line compares the best of several rounds, ours and torch's alternating, so that what else
runs on the machine hits both. Weights are random (seed 0). Products: speed relative to torch's
float32 `F.linear` on as many threads. Steps: milliseconds, and tokens per second. With --threads 1
the time is the calling thread's CPU time, which other load on the machine disturbs less.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

from llmc.plugins import native
from llmc.plugins.cpu_program import KINDS, TYPES
from llmc.plugins.panels import PANEL, pack_panels, pad_columns, padded
from llmc.quant import w8a16
from llmc.runtime.batch import Batch
from llmc.runtime.engine import KvCacheConfig
from llmc.runtime.engines import cpu

SHAPES = ((576, 960), (576, 576), (576, 3072), (1536, 576))
"""(inputs, outputs) of SmolLM2-135M's four products."""
ROWS = (1, 8, 32, 512)
STORED = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
STEPS = ((1, 1, 64), (8, 1, 64), (32, 1, 64), (32, 1, 512), (1, 512, 512), (4, 512, 512))
"""(sequences, new tokens of each, context of each after the step)."""


def best_seconds(
    calls: dict[str, Callable[[], Any]], rounds: int, threads: int
) -> dict[str, float]:
    """Return each call's fastest run; the calls take turns."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            started = clock()
            call()
            best[name] = min(best[name], clock() - started)
    return best


def repeated(call: Callable[[], Any], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            call()

    return run


def product(
    team: native.Team, weight: Any, type: str, x: Any, y: Any
) -> tuple[Callable[[], None], list[Any]]:
    """Return a call of the linear kernel, and what must stay alive for it."""
    scale = None
    if type == "int8":
        stored, scale = w8a16.quantize(weight)
        scale = pad_columns(scale)
    else:
        stored = weight.astype(STORED[type])
    panels = pack_panels(stored)
    op = native.NativeOp(kind=KINDS["linear"], type=TYPES[type], input=0, input2=-1, output=1)
    op.dim[:3] = (weight.shape[1], weight.shape[0], padded(weight.shape[0]) // PANEL)
    op.tensor[0] = panels.ctypes.data
    op.tensor[1] = None if scale is None else scale.ctypes.data
    ops, batch = (native.NativeOp * 1)(op), native.NativeBatch(num_tokens=x.shape[0])
    addresses = [x.ctypes.data, y.ctypes.data]
    return lambda: team.run(ops, batch, addresses), [panels, scale]


def products(team: native.Team, rounds: int) -> None:
    draw = np.random.default_rng(0).standard_normal
    print(f"{team.instruction_set}, {team.threads} threads; speed relative to torch float32")
    print(f"{'inputs':>6} {'outputs':>7} {'rows':>4}  torch GFLOP/s  " + "  ".join(TYPES))
    for num_in, num_out in SHAPES:
        weight = draw((num_out, num_in)).astype(np.float32)
        torch_weight = torch.from_numpy(weight)
        for rows in ROWS:
            x, y = draw((rows, num_in)).astype(np.float32), np.empty((rows, num_out), np.float32)
            torch_x = torch.from_numpy(x)
            calls: dict[str, Callable[[], Any]] = {
                "torch": lambda a=torch_x, b=torch_weight: torch.nn.functional.linear(a, b)
            }
            alive = []
            for type in TYPES:
                calls[type], kept = product(team, weight, type, x, y)
                alive.append(kept)
            repeats = max(1, 2_000_000_000 // (2 * rows * num_in * num_out) // 100)
            best = best_seconds(
                {name: repeated(call, repeats) for name, call in calls.items()},
                rounds,
                team.threads,
            )
            speed = 2 * rows * num_in * num_out * repeats / best["torch"] * 1e-9
            ratios = "  ".join(f"{best['torch'] / best[type]:{len(type)}.2f}" for type in TYPES)
            print(f"{num_in:6} {num_out:7} {rows:4}  {speed:13.1f}  {ratios}", flush=True)


def step_batch(sequences: int, new: int, context: int, limits: Any) -> Batch:
    """Return a step of `new` tokens for each sequence, whose blocks lie scattered in the pool."""
    generator = np.random.default_rng(0)
    blocks = -(-context // limits.tokens_per_block)
    tables = generator.permutation(limits.num_blocks)[: sequences * blocks]
    ends = np.arange(1, sequences + 1, dtype=np.int32) * new
    return Batch(
        token_ids=generator.integers(0, limits.vocab_size, sequences * new).astype(np.int32),
        positions=np.tile(np.arange(context - new, context, dtype=np.int32), sequences),
        query_start=np.append(0, ends).astype(np.int32),
        context_lens=np.full(sequences, context, np.int32),
        block_tables=tables.reshape(sequences, blocks).astype(np.int32),
        logits_rows=ends - 1,
        prompt_lens=np.full(sequences, context, np.int32),
    )


def steps(engine_dir: Path, rounds: int, threads: int) -> None:
    started = time.perf_counter()
    engine = cpu.load(engine_dir, kv=KvCacheConfig(max_tokens=32 * 1024), threads=threads)
    print(f"{engine_dir}: loaded in {time.perf_counter() - started:.2f} s")
    print("sequences  new  context      ms  tokens/s")
    for sequences, new, context in STEPS:
        batch = step_batch(sequences, new, context, engine.limits)
        calls = {"step": lambda b=batch: engine.forward(b)}
        best = best_seconds(calls, rounds, threads)["step"]
        print(
            f"{sequences:9} {new:4} {context:8} {best * 1e3:7.1f} {sequences * new / best:9.0f}",
            flush=True,
        )
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", type=Path, help="an engine directory to step")
    parser.add_argument("--threads", type=int, default=native.available_cores())
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    team = native.Team(threads=options.threads)
    torch.set_num_threads(team.threads)
    products(team, options.rounds)
    team.close()
    if options.engine:
        steps(options.engine, options.rounds, options.threads)


if __name__ == "__main__":
    main()
