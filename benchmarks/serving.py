"""Output tokens per second of the executor, against less of it and against transformers.

    python benchmarks/serving.py demo/smollm2 demo/out/engine [MORE_ENGINES]

32 prompts of 16 to 512 tokens, made by seed from the text in tests/data, 64 tokens each, greedy,
EOS ignored; every run gets the same. Of each engine:

in flight          all 32 enqueued at once
one at a time      the next when the last has finished
8 in flight        8 clients, each enqueues its next request when its last has finished
static batches     of 8: the next eight when all of the last eight have finished

The last two also run with output lengths of 16 to 112 tokens (the same total): where lengths
differ, a static batch waits for its longest. transformers generates all 32 as one left-padded
batch, in float32 and in bfloat16; ratios are to the faster one. Runs are interleaved `--repeat`
times and the best of each counts. On a machine with other work, compare the CPU seconds.
"""

import argparse
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from llmc.runtime.engine import KvCacheConfig, load_engine
from llmc.runtime.executor import Executor, ExecutorConfig
from llmc.runtime.request import Request, Response
from llmc.runtime.scheduler import SchedulerConfig
from llmc.runtime.tokenizer import Tokenizer

TEXT = Path(__file__).parents[1] / "tests" / "data" / "prompts.txt"
NUM_PROMPTS, SHORTEST, LONGEST = 32, 16, 512
NUM_TOKENS = 64
CLIENTS = 8

Run = Callable[[], tuple[float, int]]
"""Runs everything once and returns (seconds, output tokens)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Output tokens per second of wall time and per second of CPU time, all threads together."""

    wall: float
    cpu: float


def make_prompts(tokenizer: Tokenizer, seed: int) -> list[tuple[int, ...]]:
    """Return prompts of log-uniform lengths: the lines of TEXT in random order, cut to length."""
    random = np.random.default_rng(seed)
    lines = TEXT.read_text(encoding="utf-8").splitlines()
    lengths = np.exp(random.uniform(np.log(SHORTEST), np.log(LONGEST), NUM_PROMPTS)).astype(int)
    prompts = []
    for length in lengths:
        ids: list[int] = []
        while len(ids) < length:
            ids += tokenizer.encode(lines[random.integers(len(lines))] + " ")
        prompts.append(tuple(ids[:length]))
    return prompts


def output_lengths(seed: int) -> list[int]:
    """Return NUM_PROMPTS lengths from 16 to 112 whose sum is that of NUM_TOKENS each."""
    half = np.random.default_rng(seed).integers(16, 113, NUM_PROMPTS // 2)
    return [int(length) for pair in zip(half, 128 - half, strict=True) for length in pair]


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Sends the same requests to one executor in different ways."""

    executor: Executor
    prompts: Sequence[tuple[int, ...]]

    def at_once(self, lengths: Sequence[int]) -> tuple[float, int]:
        return self._clients(lengths, len(self.prompts))

    def one_at_a_time(self, lengths: Sequence[int]) -> tuple[float, int]:
        return self._clients(lengths, 1)

    def in_flight(self, lengths: Sequence[int]) -> tuple[float, int]:
        return self._clients(lengths, CLIENTS)

    def static_batches(self, lengths: Sequence[int]) -> tuple[float, int]:
        started, total = time.perf_counter(), 0
        for first in range(0, len(self.prompts), CLIENTS):
            group = range(first, min(first + CLIENTS, len(self.prompts)))
            total += self._clients(lengths, CLIENTS, list(group))[1]
        return time.perf_counter() - started, total

    def outputs(self, clients: int) -> list[tuple[int, ...]]:
        """Return the tokens of every request when `clients` are in flight."""
        found: dict[int, tuple[int, ...]] = {}
        self._clients([NUM_TOKENS] * len(self.prompts), clients, keep=found)
        return [found[index] for index in range(len(self.prompts))]

    def _clients(
        self,
        lengths: Sequence[int],
        clients: int,
        indices: Sequence[int] | None = None,
        keep: dict[int, tuple[int, ...]] | None = None,
    ) -> tuple[float, int]:
        """Keep `clients` requests in flight until all of `indices` are done."""
        waiting = list(indices if indices is not None else range(len(self.prompts)))[::-1]
        remaining = len(waiting)
        done = threading.Event()
        total = 0

        def start() -> None:
            index = waiting.pop()
            request = Request(prompt_ids=self.prompts[index], max_tokens=lengths[index])
            self.executor.enqueue(request, lambda response: finish(index, response))

        def finish(index: int, response: Response) -> None:
            nonlocal remaining, total
            assert response.error is None, response.error
            total += len(response.token_ids)
            if keep is not None:
                keep[index] = keep.get(index, ()) + response.token_ids
            if response.is_final:
                remaining -= 1
                if waiting:
                    start()
                if remaining == 0:
                    done.set()

        started = time.perf_counter()
        for _ in range(min(clients, len(waiting))):
            start()
        done.wait()
        return time.perf_counter() - started, total


def transformers_batch(model: Any, prompts: Sequence[tuple[int, ...]]) -> tuple[float, int]:
    """Generate all prompts as one left-padded batch."""
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    started = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
    return time.perf_counter() - started, (out.shape[1] - width) * len(prompts)


def engine_runs(name: str, driver: Driver, seed: int) -> dict[str, Run]:
    """Return the runs of one engine by the label they are printed under."""
    even, mixed = [NUM_TOKENS] * NUM_PROMPTS, output_lengths(seed)
    return {
        f"{name}: in flight": lambda: driver.at_once(even),
        f"{name}: one at a time": lambda: driver.one_at_a_time(even),
        f"{name}: {CLIENTS} in flight": lambda: driver.in_flight(even),
        f"{name}: static batches of {CLIENTS}": lambda: driver.static_batches(even),
        f"{name}: {CLIENTS} in flight, mixed lengths": lambda: driver.in_flight(mixed),
        f"{name}: static batches, mixed lengths": lambda: driver.static_batches(mixed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path, help="Hugging Face directory, for transformers")
    parser.add_argument("engines", type=Path, nargs="+", help="engine directories of that model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument(
        "--only", action="append", default=[], help="run only labels that contain this; repeatable"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    transformers_logging.disable_progress_bar()
    prompts = make_prompts(Tokenizer.open(arguments.model), arguments.seed)
    print(
        f"{len(prompts)} prompts, {sum(map(len, prompts))} tokens ({min(map(len, prompts))} to"
        f" {max(map(len, prompts))}), seed {arguments.seed}; {torch.get_num_threads()} threads",
        flush=True,
    )
    executors, runs = [], dict[str, Run]()
    for directory in arguments.engines:
        executors.append(_open(directory, prompts))
        name = _engine_name(directory)
        runs |= engine_runs(name, Driver(executor=executors[-1], prompts=prompts), arguments.seed)
    for dtype in ("float32", "bfloat16"):
        runs[f"transformers: batch of {NUM_PROMPTS}, {dtype}"] = _transformers_run(
            arguments.model, dtype, prompts
        )
    if arguments.only:
        runs = {
            label: run
            for label, run in runs.items()
            if any(part in label for part in arguments.only)
        }
    _report(_measure(runs, arguments.repeat))
    for directory, executor in zip(arguments.engines, executors, strict=True):
        _compare_outputs(directory, Driver(executor=executor, prompts=prompts))
        executor.shutdown()


def _open(directory: Path, prompts: Sequence[tuple[int, ...]]) -> Executor:
    kv_tokens = sum(len(prompt) + 2 * NUM_TOKENS + 64 for prompt in prompts)
    # With prefix reuse every run after the first would find its prompts already in the cache.
    scheduler = SchedulerConfig(enable_kv_cache_reuse=False)
    config = ExecutorConfig(kv=KvCacheConfig(max_tokens=kv_tokens), scheduler=scheduler)
    return Executor(load_engine(directory, kv=config.kv), None, config)


def _engine_name(directory: Path) -> str:
    config = json.loads((directory / "config.json").read_text())["pretrained_config"]
    return str(config["quantization"]["quant_algo"] or config["dtype"])


def _transformers_run(model_dir: Path, dtype: str, prompts: Sequence[tuple[int, ...]]) -> Run:
    loaded: list[Any] = []

    def run() -> tuple[float, int]:
        if not loaded:
            kind = getattr(torch, dtype)
            loaded.append(AutoModelForCausalLM.from_pretrained(model_dir, dtype=kind).eval())
            loaded[0].generate(torch.zeros(1, 4, dtype=torch.long), max_new_tokens=2)
        return transformers_batch(loaded[0], prompts)

    return run


def _measure(runs: dict[str, Run], repeat: int) -> dict[str, Rates]:
    """Return the best rates of each run."""
    best: dict[str, Rates] = {}
    for number in range(repeat):
        for label, run in runs.items():
            before = time.process_time()
            seconds, tokens = run()
            cpu_seconds = time.process_time() - before
            old = best.get(label, Rates(wall=0.0, cpu=0.0))
            best[label] = Rates(
                wall=max(old.wall, tokens / seconds), cpu=max(old.cpu, tokens / cpu_seconds)
            )
            print(
                f"  {number + 1}/{repeat} {label}: {tokens} tokens in {seconds:.2f} s,"
                f" {cpu_seconds:.2f} CPU s",
                flush=True,
            )
    return best


def _report(best: dict[str, Rates]) -> None:
    peers = [rates for label, rates in best.items() if "transformers" in label]
    peer = Rates(
        wall=max((rates.wall for rates in peers), default=float("nan")),
        cpu=max((rates.cpu for rates in peers), default=float("nan")),
    )
    print(f"\n{'':44} {'tokens/s':>9} {'ratio':>6} {'tokens/CPU s':>13} {'ratio':>6}")
    for label, rates in best.items():
        wall, cpu = rates.wall / peer.wall, rates.cpu / peer.cpu
        print(f"{label:44} {rates.wall:9.1f} {wall:6.2f} {rates.cpu:13.1f} {cpu:6.2f}")


def _compare_outputs(directory: Path, driver: Driver) -> None:
    together, alone = driver.outputs(NUM_PROMPTS), driver.outputs(1)
    equal = sum(a == b for a, b in zip(together, alone, strict=True))
    print(f"{directory}: {equal} of {NUM_PROMPTS} outputs equal in flight and alone")


if __name__ == "__main__":
    main()
