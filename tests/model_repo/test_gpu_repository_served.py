"""A repository for TensorRT-LLM's backend with the target swapped for `cpu`, in a real server.

What is swapped is the model in the middle; preprocessing, postprocessing, the ensemble and
tensorrt_llm_bls are the very files that TensorRT-LLM's backend is served with.
"""

import itertools
import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tritonclient.grpc as triton

from llmc.cli.repository import write_repository
from llmc.model_repo.client import GeneratePiece, GenerateRequest, generate
from llmc.model_repo.metrics import read_metrics
from llmc.recipes.loader import load_recipe
from llmc.runtime.engine import KvCacheConfig
from llmc.runtime.executor import ExecutorConfig
from llmc.runtime.request import SamplingParams
from llmc.runtime.session import Session, open_session
from tests.model_repo.handmade import write_engine
from tests.model_repo.served import MAX_SEQ_LEN, Served, needs_triton, serve

pytestmark = [needs_triton, pytest.mark.slow]

PROMPT = "the quick brown fox"
SAMPLING: dict[str, Any] = {"temperature": 3.0, "top_k": 0, "seed": 3}
"""Random bytes: characters that are split over tokens, and some that never become whole."""

GPU, CPU = "target: {kind: tensorrt-llm, version: 1.2}", "target: {kind: cpu}"
RECIPE = f"""
model: anything
{GPU}
serve:
  llmc_tensors: false
  max_batch_size: 8
  max_tokens_in_paged_kv_cache: {8 * MAX_SEQ_LEN}
  cancellation_check_period_ms: 10
  warmup_prompt_tokens: 20
  tensorrt_llm: {{lora_cache_max_adapter_size: 32, kv_cache_host_memory_bytes: 1000000}}
"""
"""Of GPUs; with its second line swapped, of this machine."""

SAME_FILES = ("preprocessing", "postprocessing", "ensemble", "tensorrt_llm_bls")


def write(root: Path, text: str) -> Path:
    """Write the repository of `root`/engine as a recipe says; return its directory."""
    recipe, repository = root / "recipe.yaml", root / "model_repo"
    recipe.write_text(text)
    repository.mkdir()
    write_repository(load_recipe(recipe), root / "engine", repository)
    return repository


@pytest.fixture(scope="module")
def output(served_output: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine of `served_output`, in a repository with NVIDIA's tensors alone."""
    root = tmp_path_factory.mktemp("swapped") / "out"
    shutil.copytree(served_output / "engine", root / "engine")
    repository = write(root, RECIPE.replace(GPU, CPU))
    # The same once more, under another name, with TensorRT-LLM's way of streaming text.
    other = shutil.copytree(repository / "tensorrt_llm_bls", repository / "accumulating")
    file = other / "config.pbtxt"
    text = file.read_text().replace('name: "tensorrt_llm_bls"', 'name: "accumulating"')
    key = text.index('key: "accumulate_tokens"')
    file.write_text(text[:key] + text[key:].replace('"false"', '"true"', 1))
    return root


class Started(NamedTuple):
    """A server, and what it said of itself before anybody asked it anything."""

    server: Served
    metrics: dict[tuple[str, str], float]


@pytest.fixture(scope="module")
def started(output: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    with serve(output, tmp_path_factory.mktemp("cache")) as server:
        yield Started(server, read_metrics(server.metrics))


@pytest.fixture(scope="module")
def swapped(started: Started) -> Served:
    return started.server


@pytest.fixture(scope="module")
def session(output: Path) -> Iterator[Session]:
    config = ExecutorConfig(kv=KvCacheConfig(max_tokens=4 * MAX_SEQ_LEN))
    with open_session(output / "engine", config) as opened:
        yield opened


def ask(served: Served, model: str, **fields: Any) -> list[GeneratePiece]:
    request = GenerateRequest(text_input=PROMPT, **{"max_tokens": 40} | fields)
    return list(generate(served.grpc, request, model=model, timeout_seconds=60))


def text_of(pieces: list[GeneratePiece]) -> str:
    return "".join(piece.text for piece in pieces)


def test_the_other_models_are_those_of_tensorrt_llms_backend(output: Path, tmp_path: Path) -> None:
    """File by file, to the last byte: only tensorrt_llm differs."""
    engine_dir = write_engine(tmp_path / "engine", tp=1, version="1.2.1")
    shutil.copy(output / "engine" / "tokenizer.json", engine_dir)
    gpu = write(tmp_path, RECIPE)
    cpu = output / "model_repo"
    files = [file.relative_to(gpu) for model in SAME_FILES for file in (gpu / model).rglob("*.*")]
    assert {file.name for file in files} == {"config.pbtxt", "model.py", ".keep"}
    for file in files:
        assert (cpu / file).read_bytes() == (gpu / file).read_bytes(), file
    backends = [(root / "tensorrt_llm" / "config.pbtxt").read_text() for root in (gpu, cpu)]
    assert ['backend: "tensorrtllm"' in text for text in backends] == [True, False]


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_it_answers(swapped: Served, session: Session, model: str) -> None:
    for fields in ({}, SAMPLING):
        expected = session.generate(PROMPT, max_tokens=40, sampling=SamplingParams(**fields))
        (whole,) = ask(swapped, model, stream=False, **fields)
        assert whole.text == "".join(expected)
        assert whole.finish_reason is None, "llmc's own tensor"
        assert whole.num_output_tokens == 40


def test_the_ensemble_streams_token_by_token(swapped: Served) -> None:
    """Decoded one by one, as TensorRT-LLM's: what is lost is characters of several tokens."""
    pieces = ask(swapped, "ensemble", **SAMPLING)
    assert len(pieces) == 40
    (whole,) = ask(swapped, "tensorrt_llm_bls", stream=False, **SAMPLING)
    plain = [
        text.replace("\N{REPLACEMENT CHARACTER}", "") for text in (text_of(pieces), whole.text)
    ]
    assert set(plain[0]) <= set(plain[1])


def test_bls_streams_exact_text(swapped: Served) -> None:
    (whole,) = ask(swapped, "tensorrt_llm_bls", stream=False, **SAMPLING)
    pieces = ask(swapped, "tensorrt_llm_bls", **SAMPLING)
    assert text_of(pieces) == whole.text
    assert len(pieces) in (40, 41), "one more where the end is no whole character"
    assert sum(bool(piece.text) for piece in pieces) > 10, "it comes as it is made"


def test_bls_may_send_all_text_so_far(swapped: Served) -> None:
    (whole,) = ask(swapped, "tensorrt_llm_bls", stream=False, **SAMPLING)
    pieces = [piece.text for piece in ask(swapped, "accumulating", **SAMPLING)]
    assert pieces[-1] == whole.text and len(pieces) >= 40
    assert all(later.startswith(text) for text, later in itertools.pairwise(pieces))


def test_the_models_own_end_still_ends_it(swapped: Served, session: Session) -> None:
    """Preprocessing says what it is: a backend that knows no model must be told."""
    pieces = ask(swapped, "tensorrt_llm_bls", max_tokens=400, **SAMPLING)
    expected = "".join(
        session.generate(PROMPT, max_tokens=400, sampling=SamplingParams(**SAMPLING))
    )
    assert text_of(pieces) == expected


def test_http(swapped: Served) -> None:
    body = {"text_input": PROMPT, "max_tokens": 4, "stream": True}
    request = urllib.request.Request(
        f"http://{swapped.http}/v2/models/ensemble/generate_stream",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        events = [line for line in answer.read().decode().splitlines() if line]
    assert len(events) == 4 and all('"text_output"' in event for event in events)


def test_a_prompt_was_answered_before_it_was_ready(started: Started) -> None:
    assert started.metrics["nv_llm_input_token_len_sum", "total_input_tokens"] == 20


def test_a_client_sees_tensorrt_llms_tensors_alone(swapped: Served) -> None:
    client = triton.InferenceServerClient(swapped.grpc)
    metadata = client.get_model_metadata("ensemble", as_json=True)
    names = {tensor["name"] for tensor in metadata["inputs"]}
    assert "apply_chat_template" not in names and "return_num_input_tokens" in names
