"""In-flight batching over slots, end to end without a GPU: scheduler, slot engine, bindings, cache.

The plan is a stand-in that evaluates the very network TensorRT is given (tests/runtime/stand_in).
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.builders.targets.tensorrt_interpreter.reader import read_network
from llmc.builders.targets.tensorrt_stepping import lower_ranks
from llmc.builders.targets.tensorrt_weights import write_refit_weights
from llmc.checkpoint import Checkpoint
from llmc.errors import CheckpointError
from llmc.log import NullProgress
from llmc.runtime.batch import Batch
from llmc.runtime.engine import Engine, EngineLimits, KvCacheConfig
from llmc.runtime.engines import cpu
from llmc.runtime.engines.tensorrt_engine import SlotEngine
from llmc.runtime.engines.tensorrt_weights import open_weights, upload_inputs
from llmc.runtime.executor import Executor, ExecutorConfig
from llmc.runtime.request import Request, SamplingParams
from llmc.runtime.scheduler import SchedulerConfig
from tests.builders.targets.tensorrt_networks import TOOLKIT
from tests.plugins.tiny_llama import TinyLlama
from tests.runtime.cpu_engines import build_engine
from tests.runtime.stand_in import HostDevice, StandInPlan

SLOTS, MAX_SEQ_LEN, MAX_NUM_TOKENS = 4, 64, 24
LIMITS = EngineLimits(
    max_batch_size=SLOTS,
    max_num_tokens=MAX_NUM_TOKENS,
    max_input_len=MAX_SEQ_LEN,
    max_seq_len=MAX_SEQ_LEN,
    vocab_size=97,
    tokens_per_block=MAX_SEQ_LEN,
    num_blocks=SLOTS,
)


class Built:
    """A tiny model's CPU engine, and slot engines of its TensorRT network.

    `changes` are of its architecture.
    """

    def __init__(self, directory: Path, **changes: Any) -> None:
        self.tiny = TinyLlama.make(vocab_size=97, num_hidden_layers=2)
        config = replace(self.tiny.config(), arch=replace(self.tiny.arch, **changes))
        self.cpu = build_engine(self.tiny, config, directory)
        self.checkpoint = Checkpoint.open(directory / "checkpoint")
        # Tables are inputs, as of a plan without weights: that is more than one with them needs.
        (network,) = lower_ranks(
            TOOLKIT, self.checkpoint, max_seq_len=MAX_SEQ_LEN, table_inputs=True
        )
        self.graph = read_network(network.network)
        self.bindings = [asdict(binding) for binding in network.bindings]
        (path,) = write_refit_weights(
            TOOLKIT, self.checkpoint, directory, max_seq_len=MAX_SEQ_LEN, progress=NullProgress()
        )
        self.weights = open_weights(path.parent, 0)

    def slot_engine(self, **changes: int) -> tuple[SlotEngine, StandInPlan]:
        device = HostDevice()
        plan = StandInPlan(
            device,
            self.graph,
            {"context": (1, MAX_NUM_TOKENS, 8), "generation": (SLOTS, 1, 1)},
        )
        weights = upload_inputs(self.bindings, self.weights, device)
        return SlotEngine(device, plan, replace(LIMITS, **changes), weights), plan


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("slots"))


@pytest.fixture(scope="module")
def alone(built: Built) -> list[tuple[int, ...]]:
    """The answers to REQUESTS when each has the slot engine to itself."""
    return [answers(built.slot_engine()[0], [request])[0] for request in REQUESTS]


def mixed_requests(count: int) -> list[Request]:
    """Prompts of 1 to 45 tokens, answers of 1 to 18, greedy and sampled, some with priority."""
    random = np.random.default_rng(11)
    requests = []
    for index in range(count):
        prompt = random.integers(0, LIMITS.vocab_size, int(random.integers(1, 46)))
        greedy = SamplingParams()
        drawn = SamplingParams(temperature=0.8, top_k=20, seed=index)
        requests.append(
            Request(
                prompt_ids=tuple(prompt.tolist()),
                max_tokens=int(random.integers(1, 19)),
                sampling=drawn if index % 3 == 2 else greedy,
                exclude_input=True,
                priority=0.9 if index % 5 == 4 else 0.5,
            )
        )
    return requests


def answers(engine: Engine, requests: list[Request]) -> list[tuple[int, ...]]:
    """Serve all requests at once; return the tokens of each."""
    config = ExecutorConfig(scheduler=SchedulerConfig())
    with Executor(engine, None, config) as executor:
        ids = [executor.enqueue(request) for request in requests]
        found = []
        for request_id in ids:
            tokens: tuple[int, ...] = ()
            while True:
                responses = executor.await_responses(request_id)
                for response in responses:
                    assert response.error is None, response.error
                    tokens += response.token_ids
                if responses[-1].is_final:
                    break
            found.append(tokens)
    return found


REQUESTS = mixed_requests(16)


def test_the_cpu_engine_answers_the_same(built: Built, alone: list[tuple[int, ...]]) -> None:
    engine = cpu.load(built.cpu, kv=KvCacheConfig(max_tokens=2048), threads=1)
    assert answers(engine, REQUESTS) == alone


ALIBI: dict[str, Any] = {"position_embedding_type": "alibi", "rotary_embedding_dim": 0}
LONGROPE: dict[str, Any] = {
    "rotary_scaling": {
        "rope_type": "longrope",
        "short_factor": [1.0] * 8,
        "long_factor": [1.0 + index for index in range(8)],
        "original_max_position_embeddings": 30,
    }
}


@pytest.mark.parametrize("changes", [ALIBI, LONGROPE], ids=["alibi", "longrope"])
def test_slots_answer_as_on_the_cpu(changes: dict[str, Any], tmp_path: Path) -> None:
    """What depends on each slot's own places: a mask, and angles beyond 30 tokens."""
    built = Built(tmp_path, **changes)
    engine = cpu.load(built.cpu, kv=KvCacheConfig(max_tokens=2048), threads=1)
    assert answers(built.slot_engine()[0], REQUESTS[:8]) == answers(engine, REQUESTS[:8])


@pytest.mark.parametrize("max_num_tokens", [MAX_NUM_TOKENS, 7])
def test_mixed_requests_over_slots_answer_as_alone(
    built: Built, alone: list[tuple[int, ...]], max_num_tokens: int
) -> None:
    """16 requests over 4 slots; steps of 7 tokens cut prompts into many chunks."""
    engine, plan = built.slot_engine(max_num_tokens=max_num_tokens)
    together = answers(engine, REQUESTS)
    assert [len(tokens) for tokens in together] == [request.max_tokens for request in REQUESTS]
    assert together == alone
    assert {rows for phase, rows, _ in plan.runs if phase == "generation"} >= {1, 2, 3}
    assert {rows for phase, rows, _ in plan.runs if phase == "context"} == {1}
    assert plan.device.num_copied_bytes > 0, "no row was ever moved"


def one_sequence(tokens: list[int], start: int, stop: int, *, block: int) -> Batch:
    """A step of one sequence that wants all its logits."""
    count = stop - start
    return Batch(
        token_ids=np.array(tokens[start:stop], np.int32),
        positions=np.arange(start, stop, dtype=np.int32),
        query_start=np.array([0, count], np.int32),
        context_lens=np.array([stop], np.int32),
        block_tables=np.array([[block]], np.int32),
        logits_rows=np.arange(count, dtype=np.int32),
        prompt_lens=np.array([stop], np.int32),
    )


def test_logits_of_every_row_equal_transformers(built: Built) -> None:
    """More rows of logits than the profile has: the chunk is run again for the rest."""
    tokens = np.random.default_rng(3).integers(0, 97, 20).tolist()
    engine, plan = built.slot_engine()
    logits = engine.forward(one_sequence(tokens, 0, 20, block=2))
    np.testing.assert_allclose(logits, built.tiny.logits(tokens).numpy(), atol=2e-4)
    assert [phase for phase, _, _ in plan.runs] == ["context"] * 3


def test_a_full_step_says_nothing_of_who_is_not_in_it(built: Built) -> None:
    """Two sequences take turns in steps of one token, both in the first row when they do."""
    texts = np.random.default_rng(4).integers(0, 97, (2, 6)).tolist()
    engine, _ = built.slot_engine(max_num_tokens=1)
    for place in range(6):
        for text, block in zip(texts, (3, 1), strict=True):
            logits = engine.forward(one_sequence(text, place, place + 1, block=block))
            wanted = built.tiny.logits(text[: place + 1])[-1:].numpy()
            np.testing.assert_allclose(logits, wanted, atol=2e-4)


def test_weights_that_are_inputs_must_be_bound(built: Built) -> None:
    device = HostDevice()
    plan = StandInPlan(device, built.graph, {"context": (1, 8, 8), "generation": (SLOTS, 1, 1)})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight.* does not bind"):
        SlotEngine(device, plan, LIMITS, {})
    weights = upload_inputs(built.bindings, built.weights, device)
    with pytest.raises(CheckpointError, match="does not take the weights rope"):
        SlotEngine(device, plan, LIMITS, weights | {"rope": 0})


def test_weights_of_another_form_are_refused(built: Built) -> None:
    wider = [binding | {"dtype": "float64"} for binding in built.bindings]
    with pytest.raises(CheckpointError, match=r"float32 \(97, 64\), the plan takes float64"):
        upload_inputs(wider, built.weights, HostDevice())
