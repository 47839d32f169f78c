"""What several ranks cost and bring, as ratios of one run on one machine.

    python benchmarks/multi_rank.py [--layers 16] [--repeat 5]

Builds a random Llama (hidden 512, 8/4 heads, vocabulary 49152, bfloat16) for one rank, tp=2 and
pp=2, starts two ranks and steps the three in turn, so that each ratio compares neighbours in time:

step ratio     a tp=2 step (a thread per rank) to a tp=1 step (two threads), at batch 1, 8 and 32
allreduce      share of a tp=2 step that its allreduces take, waiting for the slower rank included
pipeline       a pp=2 step cut into parts to one that is not; of 1, 8, 32 and 128 sequences
scheduling     share of an iteration at tp=2 that rank 0 schedules, samples and shares the batch

Medians of `--repeat` groups of ten steps.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from llmc.builders import pipeline
from llmc.log import NullProgress
from llmc.model_repo.launchers import Job, Program, command_line
from llmc.model_repo.mpi import find_launcher, guarded
from llmc.recipes.schema import Recipe
from llmc.runtime.batch import Batch
from llmc.runtime.comm import MpiCommunicator, open_communicator
from llmc.runtime.engine import KvCacheConfig, load_engine
from llmc.runtime.inflight import InflightBatcher
from llmc.runtime.microbatch import cut
from llmc.runtime.request import Request
from llmc.runtime.sampling import SamplerState
from llmc.runtime.scheduler import SchedulerConfig
from llmc.runtime.sequence import Sequence
from llmc.runtime.text import TextStream
from llmc.runtime.worker import LeadEngine, receive_batch

CONTEXT = 96
BATCH_SIZES = (1, 8, 32)
PIPELINE_TOKENS = ((1, 1), (8, 1), (32, 1), (128, 1), (4, 64))
"""(sequences, new tokens of each)"""
STEPS = 10
KV = KvCacheConfig(max_tokens=128 * 256)


def build(directory: Path, layers: int) -> dict[str, Path]:
    """Build the three engines; return their directories."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.builders.tiny_hf import write_model

    model = write_model(
        directory / "model",
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=49152,
        max_position_embeddings=256,
    )
    engines = {}
    for name, mapping in (("one", {}), ("tp2", {"tp": 2}), ("pp2", {"pp": 2})):
        limits = {"max_batch_size": 128, "max_num_tokens": 256}
        data = {"model": str(model), "dtype": "bfloat16", "mapping": mapping, "build": limits}
        recipe = Recipe.model_validate(data)
        started = time.perf_counter()
        pipeline.build(
            recipe,
            directory / name,
            until="engine",
            progress=NullProgress(),
            report=lambda result: None,
        )
        print(f"built {name} in {time.perf_counter() - started:.1f} s", flush=True)
        engines[name] = directory / name / "engine"
    return engines


def decode_batch(num_sequences: int, num_tokens: int = 1) -> Batch:
    """Return a step of sequences that have CONTEXT tokens behind them."""
    blocks = -(-(CONTEXT + num_tokens) // 32)
    total = num_sequences * num_tokens
    return Batch(
        token_ids=np.arange(total, dtype=np.int32) % 1000,
        positions=np.tile(np.arange(num_tokens, dtype=np.int32) + CONTEXT, num_sequences),
        query_start=np.arange(num_sequences + 1, dtype=np.int32) * num_tokens,
        context_lens=np.full(num_sequences, CONTEXT + num_tokens, np.int32),
        block_tables=np.arange(num_sequences * blocks, dtype=np.int32).reshape(-1, blocks),
        logits_rows=np.arange(1, num_sequences + 1, dtype=np.int32) * num_tokens - 1,
        prompt_lens=np.full(num_sequences, CONTEXT, np.int32),
    )


def seconds_of(forward: Callable[[Batch], Any], batch: Batch) -> float:
    """Return the median time of a step, once it runs warm."""
    forward(batch)
    times = []
    for _ in range(STEPS):
        started = time.perf_counter()
        forward(batch)
        times.append(time.perf_counter() - started)
    return float(np.median(times))


class Clocked(MpiCommunicator):
    """Counts what allreduces take."""

    spent = 0.0
    count = 0

    def allreduce(self, values: Any, group: tuple[int, ...]) -> None:
        started = time.perf_counter()
        super().allreduce(values, group)
        self.spent += time.perf_counter() - started
        self.count += 1


def follow(engine: Any, comm: MpiCommunicator, pp_size: int) -> None:
    """Be rank 1 until rank 0 is done with this engine, which stays open."""
    comm.share(str(engine.limits.num_blocks))
    while (batch := receive_batch(comm)) is not None:
        engine.forward_parts(cut(batch, pp_size))


def finish(lead: LeadEngine) -> None:
    """End the follower's loop but not the engine."""
    lead.comm.broadcast(np.zeros(2048, np.int32))


def tensor_parallel(lead: LeadEngine, whole: Any, comm: Clocked, repeat: int) -> None:
    """Print the ratios of tp=2 to one rank, and what its allreduces take."""
    for size in BATCH_SIZES:
        batch, ratios, shares, costs = decode_batch(size), [], [], []
        for _ in range(repeat):
            one = seconds_of(whole.forward, batch)
            comm.spent, comm.count = 0.0, 0
            two = seconds_of(lead.forward, batch)
            ratios.append(two / one)
            shares.append(comm.spent / (STEPS + 1) / two)
            costs.append(1e6 * comm.spent / max(1, comm.count))
        print(
            f"batch {size:3}: tp=2 / tp=1 step {np.median(ratios):.2f}"
            f" ({min(ratios):.2f}-{max(ratios):.2f}), allreduce {np.median(shares):.0%} of it,"
            f" {comm.count // (STEPS + 1)} a step of {np.median(costs):.0f} µs each",
            flush=True,
        )


def scheduling(lead: LeadEngine, repeat: int) -> None:
    """Print how much of an iteration is not the engine's step."""
    for size in BATCH_SIZES:
        shares, microseconds = [], []
        for _ in range(repeat):
            batcher = InflightBatcher(lead, SchedulerConfig())
            for number in range(size):
                batcher.add(_sequence(number, lead.limits.vocab_size))
            batcher.step()
            spent = [0.0]
            original = lead.forward

            def timed(batch: Batch, original: Any = original, spent: Any = spent) -> Any:
                started = time.perf_counter()
                try:
                    return original(batch)
                finally:
                    spent[0] += time.perf_counter() - started

            lead.forward = timed  # type: ignore[method-assign]
            started = time.perf_counter()
            for _ in range(STEPS):
                batcher.step()
            total = time.perf_counter() - started
            lead.forward = original  # type: ignore[method-assign]
            shares.append(1 - spent[0] / total)
            microseconds.append(1e6 * (total - spent[0]) / STEPS)
        print(
            f"batch {size:3}: rank 0 schedules and samples {np.median(shares):.1%} of an iteration,"
            f" {np.median(microseconds):.0f} µs",
            flush=True,
        )


def _sequence(number: int, vocab_size: int) -> Sequence:
    request = Request(prompt_ids=(5, 6, 7 + number), max_tokens=64)
    return Sequence(
        request_id=number,
        request=request,
        sampler=SamplerState(request, vocab_size),
        stream=TextStream(None, stops=(), prefix=()),
        tokens=list(request.prompt_ids),
        num_prompt=3,
    )


def run_ranks(engines: dict[str, Path], repeat: int) -> None:
    """Be one of the two ranks."""
    comm = open_communicator(2)
    comm.__class__ = Clocked
    assert isinstance(comm, Clocked)
    threads = comm.num_threads
    parallel: Any = load_engine(engines["tp2"], rank=comm.rank, kv=KV, comm=comm, threads=threads)
    staged: Any = load_engine(engines["pp2"], rank=comm.rank, kv=KV, comm=comm, threads=threads)
    if comm.rank:
        follow(parallel, comm, 1)
        for _ in range(repeat):
            for pp_size in (1, 2):
                follow(staged, comm, pp_size)
        return
    whole = load_engine(engines["one"], kv=KV, threads=2 * threads)
    print(f"{threads} thread per rank, {2 * threads} for one rank", flush=True)
    lead = LeadEngine(parallel, comm)
    tensor_parallel(lead, whole, comm, repeat)
    scheduling(lead, repeat)
    finish(lead)
    pipelined(staged, comm, repeat)


def pipelined(staged: Any, comm: Clocked, repeat: int) -> None:
    """Print what cutting a step into parts brings a pipeline of two stages."""
    found: dict[tuple[int, int], list[float]] = {shape: [] for shape in PIPELINE_TOKENS}
    for _ in range(repeat):
        times: list[dict[tuple[int, int], float]] = []
        for pp_size in (1, 2):
            lead = LeadEngine(staged, comm, pp_size=pp_size)
            times.append({})
            for shape in PIPELINE_TOKENS:
                times[-1][shape] = seconds_of(lead.forward, decode_batch(*shape))
            finish(lead)
        for shape in PIPELINE_TOKENS:
            found[shape].append(times[1][shape] / times[0][shape])
    for (sequences, tokens), ratios in found.items():
        parts = len(cut(decode_batch(sequences, tokens), 2))
        print(
            f"pp=2, {sequences} sequences of {tokens} tokens: {parts} parts,"
            f" in parts / whole step {np.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        named = {name: Path(path) for name, path in json.loads(arguments.rank).items()}
        run_ranks(named, arguments.repeat)
        return
    with tempfile.TemporaryDirectory() as directory:
        engines = build(Path(directory), arguments.layers)
        paths = json.dumps({name: str(path) for name, path in engines.items()})
        rank = (sys.executable, __file__, "--repeat", str(arguments.repeat), "--rank", paths)
        job = Job(programs=(Program(command=rank, num_ranks=2),), as_root=True, forward=())
        with subprocess.Popen(
            guarded(command_line(find_launcher(), job)), stdin=subprocess.PIPE
        ) as process:
            code = process.wait()
    sys.exit(code)


if __name__ == "__main__":
    main()
