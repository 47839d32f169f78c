"""The repository under a real tritonserver; every answer is compared with the executor's own."""

import http.client
import json
import queue
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from llmc.errors import ServeError
from llmc.model_repo.client import GeneratePiece, GenerateRequest, generate
from llmc.model_repo.metrics import read_metrics
from llmc.runtime.engine import KvCacheConfig
from llmc.runtime.executor import ExecutorConfig
from llmc.runtime.request import SamplingParams
from llmc.runtime.session import Session, open_session
from tests.model_repo.served import MAX_SEQ_LEN, Served, emit, needs_triton, serve

pytestmark = [needs_triton, pytest.mark.slow]

KV = "nv_trt_llm_kv_cache_block_metrics"
REQUESTS = "nv_trt_llm_request_metrics"
PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def session(served_output: Path) -> Iterator[Session]:
    """The same engine in this process."""
    config = ExecutorConfig(kv=KvCacheConfig(max_tokens=4 * MAX_SEQ_LEN))
    with open_session(served_output / "engine", config) as opened:
        yield opened


def ask(served: Served, model: str = "ensemble", **fields: Any) -> list[GeneratePiece]:
    values: dict[str, Any] = {"text_input": PROMPT, "max_tokens": 12} | fields
    request = GenerateRequest(**values)
    return list(generate(served.grpc, request, model=model, timeout_seconds=60))


def text_of(pieces: list[GeneratePiece]) -> str:
    return "".join(piece.text for piece in pieces)


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_idle(served: Served) -> bool:
    metrics = read_metrics(served.metrics)
    return metrics[KV, "used"] == 0 and metrics[REQUESTS, "active"] == 0


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
@pytest.mark.parametrize("stream", [True, False])
def test_answers_are_the_executors(
    served: Served, session: Session, model: str, stream: bool
) -> None:
    expected = "".join(session.generate(PROMPT, max_tokens=12))
    pieces = ask(served, model, stream=stream)
    assert text_of(pieces) == expected
    assert len(pieces) == (12 if stream else 1)
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == "length"
    assert pieces[-1].num_output_tokens == 12
    assert pieces[-1].num_input_tokens == len(session.tokenizer.encode(PROMPT))


def test_the_prompt_comes_back_only_unstreamed_and_only_when_wanted(served: Served) -> None:
    answer = text_of(ask(served))
    for model in ("ensemble", "tensorrt_llm_bls"):
        whole = ask(served, model, stream=False, exclude_input_in_output=None)
        assert text_of(whole) == PROMPT + answer, "TensorRT-LLM's default"
        assert text_of(ask(served, model, exclude_input_in_output=False)) == answer


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_log_probs(served: Served, model: str) -> None:
    assert ask(served, model)[0].log_probs is None
    pieces = ask(served, model, return_log_probs=True)
    flat = [value for piece in pieces for value in piece.log_probs or ()]
    assert len(flat) == 12 and max(flat) < 0
    assert pieces[-1].cum_log_prob == pytest.approx(sum(flat), rel=1e-5)
    (whole,) = ask(served, model, return_log_probs=True, stream=False)
    assert whole.log_probs == pytest.approx(flat, rel=1e-6)


def test_sampling_reaches_the_executor(served: Served, session: Session) -> None:
    fields: dict[str, Any] = {
        "temperature": 5.0,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.001,
        "seed": 2**63 + 5,
    }
    expected = "".join(session.generate(PROMPT, max_tokens=12, sampling=SamplingParams(**fields)))
    assert text_of(ask(served, **fields)) == expected
    assert text_of(ask(served, **fields | {"seed": 6})) != expected
    penalties: dict[str, Any] = {
        "repetition_penalty": 1.9,
        "presence_penalty": 1.5,
        "frequency_penalty": 1.0,
    }
    expected = "".join(
        session.generate(PROMPT, max_tokens=12, sampling=SamplingParams(**penalties))
    )
    assert text_of(ask(served, **penalties)) == expected


def test_stop_words_cut_the_text_exactly(served: Served) -> None:
    fields: dict[str, Any] = {"temperature": 3.0, "top_k": 0, "seed": 1, "max_tokens": 60}
    text = text_of(ask(served, **fields))
    stop = text[9:13]
    pieces = ask(served, stop_words=("never", stop), **fields)
    assert text_of(pieces) == text[: text.index(stop)]
    assert pieces[-1].finish_reason == "stop"


def test_end_ids_and_bad_words(served: Served, session: Session) -> None:
    """A token of the answer ends it, or never comes."""
    fields: dict[str, Any] = {"temperature": 3.0, "top_k": 0, "seed": 1}
    texts = [piece.text for piece in ask(served, **fields)]
    encoded = [session.tokenizer.encode(text) for text in texts]
    first = next(index for index, ids in enumerate(encoded) if len(ids) == 1)
    word = texts[first]
    without = ask(served, bad_words=(word,), **fields)
    assert len(without) == 12 and word not in [piece.text for piece in without]
    ended = ask(served, end_id=encoded[first][0], **fields)
    assert text_of(ended) == "".join(texts[: texts.index(word)])
    assert ended[-1].finish_reason == "end_id"


def test_chat_template_is_applied_in_the_server(served: Served, session: Session) -> None:
    messages = [{"role": "user", "content": "naïve 🙂"}]
    expected = "".join(session.chat(messages, max_tokens=12))
    for model in ("ensemble", "tensorrt_llm_bls"):
        pieces = ask(served, model, text_input=json.dumps(messages), apply_chat_template=True)
        assert text_of(pieces) == expected
    with pytest.raises(ServeError, match="chat: .*expected a JSON list"):
        ask(served, text_input="hello", apply_chat_template=True)


def test_refusals_name_the_reason_and_harm_nobody(served: Served) -> None:
    with pytest.raises(ServeError, match=f"600 = .* > max_seq_len {MAX_SEQ_LEN}"):
        ask(served, max_tokens=600)
    with pytest.raises(ServeError, match="top_p"):
        ask(served, "tensorrt_llm_bls", top_p=1.5)
    for name, dtype, value, model in (
        ("beam_width", np.int32, 2, "ensemble"),
        ("return_context_logits", np.bool_, True, "ensemble"),
        ("lora_task_id", np.uint64, 7, "ensemble"),
        ("num_return_sequences", np.int32, 2, "tensorrt_llm_bls"),
        ("decoder_text_input", np.object_, "text", "ensemble"),
        ("num_draft_tokens", np.int32, 4, "tensorrt_llm_bls"),
    ):
        tensors = _tensors(text_input=PROMPT, max_tokens=3, **{name: dtype(value)})
        _, error = first_response(served, model, tensors)
        seen = {"decoder_text_input": "DECODER_QUERY"}.get(name, name)
        assert f"not supported by this engine: {seen}" in str(error)
    neutral = _tensors(text_input=PROMPT, max_tokens=3, beam_width=1, length_penalty=1.0)
    result, error = first_response(served, "ensemble", neutral)
    assert error is None and result.as_numpy("text_output").shape == (1,)
    assert len(ask(served)) == 12
    assert wait_for(lambda: is_idle(served))


def first_response(served: Served, model: str, tensors: list[Any]) -> tuple[Any, Any]:
    """Return (result, error) of the first response to other people's tensors."""
    responses: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client = triton.InferenceServerClient(served.grpc)
    client.start_stream(lambda result, error: responses.put((result, error)))
    client.async_stream_infer(model, tensors)
    first = responses.get(timeout=60)
    client.stop_stream()
    client.close()
    return first


def _tensors(**values: Any) -> list[Any]:
    """Return [1, 1] tensors of plain values, as other people's clients send them."""
    wire = {"i": "INT32", "f": "FP32", "b": "BOOL", "u": "UINT64", "O": "BYTES"}
    tensors = []
    for name, value in values.items():
        if isinstance(value, str | np.str_):
            array = np.array([[str(value).encode()]], np.object_)
        else:
            array = np.array([[value]])
            narrow = {"int64": np.int32, "float64": np.float32}
            array = array.astype(narrow.get(str(array.dtype), array.dtype))
        tensor = triton.InferInput(name, array.shape, wire[array.dtype.kind])
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


def test_concurrent_streams_equal_single_ones_and_cancelled_ones_leave_nothing(
    served: Served,
) -> None:
    requests = [
        GenerateRequest(
            text_input=f"{PROMPT} {'dog ' * (number * 3)}{number}", max_tokens=20 + number * 5
        )
        for number in range(32)
    ]

    def run(request: GenerateRequest) -> str:
        return text_of(list(generate(served.grpc, request, timeout_seconds=120)))

    alone = [run(request) for request in requests]
    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(run, requests)) == alone

    def start_and_leave(request: GenerateRequest) -> str:
        stream = generate(served.grpc, request, timeout_seconds=120)
        text = next(stream).text + next(stream).text
        stream.close()
        return text

    with ThreadPoolExecutor(32) as pool:
        left = pool.map(
            start_and_leave, [replace(request, max_tokens=300) for request in requests[::2]]
        )
        stayed = pool.map(run, requests[1::2])
        assert list(stayed) == alone[1::2]
        assert all(text.startswith(begin) for text, begin in zip(alone[::2], left, strict=True))
    assert wait_for(lambda: is_idle(served))


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_many_short_requests_end_while_clients_are_looked_for(served: Served, model: str) -> None:
    """Asking Triton about a client after the last response was sent would end the server."""
    with ThreadPoolExecutor(8) as pool:
        lengths = pool.map(lambda n: len(ask(served, model, max_tokens=1 + n % 5)), range(150))
        assert list(lengths) == [1 + n % 5 for n in range(150)]
    assert served.process.returncode is None


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_a_stream_that_is_closed_is_cancelled_within_a_few_tokens(
    served: Served, model: str
) -> None:
    before = _generated(served)
    request = GenerateRequest(text_input=PROMPT, max_tokens=450)
    stream = generate(served.grpc, request, model=model, timeout_seconds=60)
    next(stream)
    stream.close()
    assert wait_for(lambda: is_idle(served))
    assert _generated(served) - before < 400


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_an_http_client_that_hangs_up_is_cancelled(served: Served, model: str) -> None:
    before = _generated(served)
    connection = http.client.HTTPConnection(served.http)
    body = {"text_input": PROMPT, "max_tokens": 450, "stream": True}
    connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps(body))
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: {")
    answer.close()
    connection.close()
    assert wait_for(lambda: is_idle(served))
    assert _generated(served) - before < 400


def _generated(served: Served) -> float:
    """Count the tokens of all requests that have ended."""
    metrics = read_metrics(served.metrics)
    return metrics.get(("nv_llm_output_token_len_sum", "total_output_tokens"), 0.0)


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_http_generate_and_generate_stream(served: Served, model: str) -> None:
    expected = text_of(ask(served))
    body = {"text_input": PROMPT, "max_tokens": 12, "exclude_input_in_output": True}

    def post(path: str, **more: Any) -> bytes:
        connection = http.client.HTTPConnection(served.http)
        connection.request("POST", f"/v2/models/{model}/{path}", json.dumps(body | more))
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read()

    assert json.loads(post("generate"))["text_output"] == expected
    events = [line for line in post("generate_stream", stream=True).split(b"\n\n") if line]
    assert len(events) == 12
    parts = [json.loads(event.removeprefix(b"data: "))["text_output"] for event in events]
    assert "".join(parts) == expected


def test_stop_input_ends_the_request_of_that_id(served: Served) -> None:
    client = triton.InferenceServerClient(served.grpc)
    stream = generate(
        served.grpc, GenerateRequest(text_input=PROMPT, max_tokens=450), request_id="mine"
    )
    next(stream)
    ids = triton.InferInput("input_ids", [1, 1], "INT32")
    ids.set_data_from_numpy(np.ones((1, 1), np.int32))
    stop = _tensors(input_lengths=1, request_output_len=0, stop=np.bool_(True))
    other = triton.InferenceServerClient(served.grpc)
    results: list[Any] = []
    other.start_stream(lambda result, error: results.append((result, error)))
    other.async_stream_infer("tensorrt_llm", [ids, *stop], request_id="mine")
    last = list(stream)[-1]
    assert last.finish_reason == "cancelled"
    assert last.num_output_tokens < 450
    other.stop_stream()
    client.close()


def test_rows_of_one_message_are_told_apart(served: Served) -> None:
    client = triton.InferenceServerClient(served.grpc)
    rows = {}
    for name, dtype, wire, values in (
        ("text_input", np.object_, "BYTES", [b"the dog", b"a lazy fox, a dog"]),
        ("max_tokens", np.int32, "INT32", [4, 7]),
        ("exclude_input_in_output", np.bool_, "BOOL", [True, True]),
    ):
        array = np.array(values, dtype)[:, None]
        rows[name] = triton.InferInput(name, array.shape, wire)
        rows[name].set_data_from_numpy(array)
    results: list[Any] = []
    client.start_stream(lambda result, error: results.append((result, error)))
    client.async_stream_infer("tensorrt_llm_bls", list(rows.values()))
    assert wait_for(lambda: len(results) >= 2)
    client.stop_stream()
    got = {
        int(result.as_numpy("batch_index")[0, 0]): result.as_numpy("text_output")[0].decode()
        for result, _ in results[:2]
    }
    assert got == {
        0: text_of(ask(served, text_input="the dog", max_tokens=4)),
        1: text_of(ask(served, text_input="a lazy fox, a dog", max_tokens=7)),
    }


def test_postprocessing_decodes_tokens_of_a_model_that_sends_no_text(
    served: Served, session: Session
) -> None:
    ids = session.tokenizer.encode("naïve café 🙂")
    client = triton.InferenceServerClient(served.grpc)
    tokens = triton.InferInput("TOKENS_BATCH", [1, 1, len(ids) + 2], "INT32")
    tokens.set_data_from_numpy(np.array([[[*ids, 5, 5]]], np.int32))
    length = triton.InferInput("SEQUENCE_LENGTH", [1, 1], "INT32")
    length.set_data_from_numpy(np.array([[len(ids)]], np.int32))
    output = client.infer("postprocessing", [tokens, length]).as_numpy("OUTPUT")
    assert output.shape == (1,) and output[0].decode() == "naïve café 🙂"


def test_metrics_are_tensorrt_llms(served: Served) -> None:
    ask(served)
    assert wait_for(lambda: is_idle(served))
    metrics = read_metrics(served.metrics)
    assert metrics[KV, "max"] == metrics[KV, "free"] == 32 * MAX_SEQ_LEN / metrics[KV, "tokens_per"]
    assert metrics[REQUESTS, "max"] == 32
    assert metrics["nv_trt_llm_general_metrics", "iteration_counter"] > 0
    assert metrics["nv_llm_input_token_len_count", "total_input_tokens"] > 0


def test_a_moved_repository_that_is_not_decoupled(
    served_output: Path, tmp_path: Path, session: Session
) -> None:
    """The tree is renamed after emission; every model answers once, and a stream is refused."""
    before = tmp_path / "before"
    shutil.copytree(served_output, before)
    emit(before, decoupled=False)
    moved = before.rename(tmp_path / "moved")
    expected = "".join(session.generate(PROMPT, max_tokens=12))
    with serve(moved, tmp_path / "cache") as served:
        for model in ("ensemble", "tensorrt_llm_bls"):
            assert text_of(ask(served, model, stream=False)) == expected
            with pytest.raises(ServeError, match=r"streaming: true, but .*decoupled false"):
                ask(served, model, stream=True)
        client = triton.InferenceServerClient(served.grpc)
        tensors = _tensors(text_input=PROMPT, max_tokens=12, exclude_input_in_output=np.bool_(True))
        answer = client.infer("ensemble", tensors).as_numpy("text_output")
        assert answer[0].decode() == expected
