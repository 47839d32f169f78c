"""The whole chain on the real model: `llmc build`, a real tritonserver, many clients at once."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from llmc.cli.build import build
from llmc.model_repo.client import GenerateRequest, generate
from llmc.model_repo.metrics import read_metrics
from tests.model_repo.served import needs_triton, serve

pytestmark = [pytest.mark.slow, needs_triton]
PROMPTS = Path(__file__).parent / "data" / "prompts.txt"
NUM_REQUESTS = 32
KV_USED = ("nv_trt_llm_kv_cache_block_metrics", "used")


def mixed_requests() -> list[GenerateRequest]:
    """Prompts of one to eight lines, answers of 8 to 32 tokens."""
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    return [
        GenerateRequest(
            text_input="\n".join(lines[number : number + 1 + number % 8]),
            max_tokens=8 + number * 7 % 25,
        )
        for number in range(NUM_REQUESTS)
    ]


def test_many_streams_get_what_each_gets_alone(smollm2: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    settings = ["build.max_seq_len=1024", "build.max_num_tokens=512"]
    build(str(smollm2), output, dtype="float32", settings=settings, as_json=True)
    with serve(output, tmp_path / "cache") as server:

        def answer(request: GenerateRequest) -> str:
            pieces = generate(server.grpc, request, timeout_seconds=300)
            return "".join(piece.text for piece in pieces)

        def leave_midway(request: GenerateRequest) -> None:
            stream = generate(server.grpc, request, timeout_seconds=300)
            next(stream)
            stream.close()

        requests = mixed_requests()
        alone = [answer(request) for request in requests]
        capital = replace(requests[0], text_input="The capital of France is", max_tokens=1)
        assert answer(capital) == " Paris"
        assert len(set(alone)) == NUM_REQUESTS
        with ThreadPoolExecutor(NUM_REQUESTS) as clients:
            assert list(clients.map(answer, requests)) == alone
            long = [replace(request, max_tokens=500) for request in requests[::2]]
            left = [clients.submit(leave_midway, request) for request in long]
            assert list(clients.map(answer, requests[1::2])) == alone[1::2]
            for future in left:
                future.result()
        deadline = time.monotonic() + 30
        while read_metrics(server.metrics)[KV_USED] and time.monotonic() < deadline:
            time.sleep(0.1)
        assert read_metrics(server.metrics)[KV_USED] == 0
