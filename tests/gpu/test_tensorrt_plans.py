"""Engines of the tensorrt targets on a GPU: plans against transformers, and in-flight batching."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llmc.builders.pipeline import build
from llmc.builders.targets.tensorrt_rtx_module import import_tensorrt_rtx
from llmc.builders.targets.tensorrt_toolkit import Toolkit
from llmc.builders.targets.tensorrt_weights import write_refit_weights
from llmc.checkpoint import Checkpoint
from llmc.log import NullProgress
from llmc.recipes.schema import Recipe
from llmc.runtime.batch import Batch
from llmc.runtime.engine import Engine, KvCacheConfig, load_engine
from llmc.runtime.executor import Executor, ExecutorConfig
from llmc.runtime.request import Request

CAPABILITIES = (75, 80, 86, 89, 120, 121)
"""Source: TensorRT for RTX 1.7, ComputeCapability."""


def capability() -> int | None:
    """Return this machine's, None where TensorRT for RTX has no plans for it."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    found = 10 * major + minor
    return found if found in CAPABILITIES else None


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]


@pytest.fixture(scope="module", params=["embed", "refit", "tensorrt"])
def engine_dir(
    request: pytest.FixtureRequest, smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Of tensorrt-rtx one with its weights in the plan, and one refitted; one of tensorrt."""
    output = tmp_path_factory.mktemp("plans")
    rtx = {
        "kind": "tensorrt-rtx",
        "compute_capabilities": [capability()],
        "weights": request.param,
    }
    if request.param == "tensorrt":
        pytest.importorskip("tensorrt", reason="needs TensorRT")
    elif capability() is None:
        pytest.skip("no GPU of a compute capability TensorRT for RTX has")
    recipe = Recipe.model_validate(
        {
            "model": smollm2,
            "dtype": "float16",
            "target": {"kind": "tensorrt"} if request.param == "tensorrt" else rtx,
            "build": {"max_batch_size": 4, "max_num_tokens": 128, "max_seq_len": 256},
        }
    )
    (made,) = build(
        recipe, output, until="checkpoint", progress=NullProgress(), report=lambda _: None
    )
    build(recipe, output, until="engine", progress=NullProgress(), report=lambda _: None)
    engine = output / "engine"
    if request.param == "refit":
        write_refit_weights(
            Toolkit.start(import_tensorrt_rtx()),
            Checkpoint.open(made.directory),
            engine,
            max_seq_len=256,
            progress=NullProgress(),
        )
    return engine


@pytest.fixture
def engine(engine_dir: Path) -> Engine:
    return load_engine(engine_dir, kv=KvCacheConfig())


def test_logits_are_near_transformers(engine: Engine, smollm2: Path) -> None:
    """float16 kernels: within a hundredth of the spread, as typed evaluation is on a CPU."""
    from transformers import AutoModelForCausalLM

    tokens = np.random.default_rng(0).integers(0, 4000, 48).tolist()
    model: Any = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    with torch.no_grad():
        wanted = model(torch.tensor([tokens])).logits[0].numpy()
    for start, stop in ((0, 40), *((place, place + 1) for place in range(40, 48))):
        batch = Batch(
            token_ids=np.array(tokens[start:stop], np.int32),
            positions=np.arange(start, stop, dtype=np.int32),
            query_start=np.array([0, stop - start], np.int32),
            context_lens=np.array([stop], np.int32),
            block_tables=np.array([[1]], np.int32),
            logits_rows=np.array([stop - start - 1], np.int32),
            prompt_lens=np.array([stop], np.int32),
        )
        difference = np.abs(engine.forward(batch)[0] - wanted[stop - 1])
        assert difference.max() < 0.1 * wanted.std()
        assert difference.mean() < 0.01 * wanted.std()
    engine.close()


def test_requests_together_answer_as_alone(engine_dir: Path) -> None:
    """Most do: other batch sizes take other kernels, which may turn a tie the other way."""
    random = np.random.default_rng(1)
    requests = [
        Request(
            prompt_ids=tuple(random.integers(0, 4000, int(random.integers(1, 60))).tolist()),
            max_tokens=24,
            exclude_input=True,
        )
        for _ in range(16)
    ]

    def answer(group: list[Request]) -> list[tuple[int, ...]]:
        engine = load_engine(engine_dir, kv=KvCacheConfig())
        with Executor(engine, None, ExecutorConfig()) as executor:
            ids = [executor.enqueue(request) for request in group]
            return [executor.await_responses(request_id)[-1].token_ids for request_id in ids]

    together = answer(requests)
    alone = [answer([request])[0] for request in requests]
    assert sum(a == b for a, b in zip(together, alone, strict=True)) >= 14
