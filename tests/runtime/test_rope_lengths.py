"""Rotary scalings that change with the length: the engine and executor beside transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llmc.runtime.engine import Engine, KvCacheConfig
from llmc.runtime.engines import cpu
from llmc.runtime.inflight import InflightBatcher
from llmc.runtime.request import Request
from llmc.runtime.sampling import SamplerState
from llmc.runtime.scheduler import SchedulerConfig
from llmc.runtime.sequence import Sequence
from llmc.runtime.text import TextStream
from tests.plugins.tiny_llama import DYNAMIC, LONGROPE, TinyLlama
from tests.runtime.cpu_engines import TOKENS_PER_BLOCK, build_engine, run

ORIGINAL = 40
SCALINGS: dict[str, dict[str, Any]] = {
    "longrope": {
        "rope_parameters": {**LONGROPE, "original_max_position_embeddings": ORIGINAL},
        "max_position_embeddings": 256,
    },
    "dynamic": {"rope_parameters": DYNAMIC, "max_position_embeddings": ORIGINAL},
}
LENGTH = 3 * TOKENS_PER_BLOCK


@pytest.fixture(scope="module", params=SCALINGS)
def built(request: Any, tmp_path_factory: Any) -> tuple[TinyLlama, Path]:
    tiny = TinyLlama.make(**SCALINGS[request.param])
    return tiny, build_engine(tiny, tiny.config(), tmp_path_factory.mktemp("rope"))


def load(directory: Path, *, max_tokens: int = 2048) -> Engine:
    return cpu.load(directory, kv=KvCacheConfig(max_tokens=max_tokens), threads=1)


def tokens_of(tiny: TinyLlama, seed: int, length: int = LENGTH) -> list[int]:
    drawn: list[int] = (
        np.random.default_rng(seed).integers(0, tiny.arch.vocab_size, length).tolist()
    )
    return drawn


def stepwise(tiny: TinyLlama, tokens: list[int], prompt: int) -> Any:
    """Return transformers' logits: the prompt at once, then token by token through its cache."""
    parts = [tokens[:prompt], *([token] for token in tokens[prompt:])]
    tiny.forget_lengths()
    cache, rows = None, []
    with torch.no_grad():
        for part in parts:
            out = tiny.model(torch.tensor([part]), cache=cache, use_cache=True)
            cache = out.cache
            rows.append(out.logits[0])
    return torch.cat(rows).numpy()


@pytest.mark.parametrize("prompt", (20, ORIGINAL, ORIGINAL + 1, 70))
def test_decode_across_the_border_equals_transformers(
    built: tuple[TinyLlama, Path], prompt: int
) -> None:
    tiny, directory = built
    engine = load(directory)
    tokens = tokens_of(tiny, 1)
    singles = [(1,)] * (LENGTH - prompt)
    want = stepwise(tiny, tokens, prompt)
    for chunks in ([(prompt,)], [(11,), (prompt - 11,)]):
        found = run(engine, [tokens], [*chunks, *singles], prompts=[prompt])[0]
        assert np.abs(found - want).max() < 1e-4 * want.std()
    engine.close()


def test_the_border_is_felt(built: tuple[TinyLlama, Path]) -> None:
    """A prompt beyond the original length changes even what its first tokens see."""
    tiny, directory = built
    engine = load(directory)
    tokens = tokens_of(tiny, 1)
    short, long = (
        run(engine, [tokens[:30]], [(30,)], prompts=[prompt])[0] for prompt in (30, LENGTH)
    )
    assert np.abs(short - long).max() > 0.1 * long.std()
    engine.close()


def answer(engine: Engine, prompts: list[list[int]], config: SchedulerConfig) -> Any:
    """Return every output, and the batcher that made them together."""
    batcher = InflightBatcher(engine, config)
    for place, prompt in enumerate(prompts):
        request = Request(prompt_ids=tuple(prompt), max_tokens=24)
        batcher.add(
            Sequence(
                request_id=place,
                request=request,
                sampler=SamplerState(request, engine.limits.vocab_size),
                stream=TextStream(None, stops=()),
                tokens=list(prompt),
                num_prompt=len(prompt),
            )
        )
    outputs: list[list[int]] = [[] for _ in prompts]
    while not batcher.is_idle:
        for event in batcher.step():
            assert event.error is None
            outputs[event.sequence.request_id] += event.token_ids
    return outputs, batcher.scheduler


def greedy(tiny: TinyLlama, prompt: list[int]) -> list[int]:
    """Return what transformers answers, token by token through its cache."""
    tiny.forget_lengths()
    part, cache, output = prompt, None, []
    with torch.no_grad():
        for _ in range(24):
            out = tiny.model(torch.tensor([part]), cache=cache, use_cache=True)
            cache = out.cache
            part = [int(out.logits[0, -1].argmax())]
            output += part
    return output


def test_preemption_and_chunks_change_nothing(built: tuple[TinyLlama, Path]) -> None:
    """Prompts on both sides of the border, in a pool too small for them together."""
    tiny, directory = built
    prompts = [tokens_of(tiny, seed, length) for seed, length in ((1, 25), (2, 30), (3, 62))]
    wanted = [greedy(tiny, prompt) for prompt in prompts]
    engine = load(directory, max_tokens=6 * TOKENS_PER_BLOCK)
    outputs, scheduler = answer(engine, prompts, SchedulerConfig(policy="max_utilization"))
    assert scheduler.num_preempted > 0
    assert outputs == wanted
    engine.close()


def test_reuse_keeps_lengths_apart(built: tuple[TinyLlama, Path]) -> None:
    """Blocks of equal tokens are shared by prompts of one regime only."""
    tiny, directory = built
    tokens = tokens_of(tiny, 4)
    each = "dynamic" in str(tiny.arch.rotary_scaling)
    prompts = [tokens[:36], tokens[:39], tokens[:70], tokens[:72], tokens[:72]]
    engine = load(directory)
    config = SchedulerConfig()
    batcher = InflightBatcher(engine, config)
    reused = []
    for prompt in prompts:
        request = Request(prompt_ids=tuple(prompt), max_tokens=24)
        batcher.add(
            Sequence(
                request_id=0,
                request=request,
                sampler=SamplerState(request, engine.limits.vocab_size),
                stream=TextStream(None, stops=()),
                tokens=list(prompt),
                num_prompt=len(prompt),
            )
        )
        output: list[int] = []
        before = batcher.scheduler.num_reused_blocks
        while not batcher.is_idle:
            for event in batcher.step():
                output += event.token_ids
        reused.append(batcher.scheduler.num_reused_blocks - before)
        assert output == greedy(tiny, prompt)
    assert reused == [0, 1, 0, 0 if each else 2, 2]
    engine.close()
