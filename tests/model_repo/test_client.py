import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from llmc.errors import ServeError, UnavailableError
from llmc.model_repo import signatures
from llmc.model_repo.client import TYPES, GenerateRequest, generate, make_inputs
from llmc.model_repo.metrics import read_metrics

WIRE = {"STRING": "BYTES"}


def test_every_field_is_an_input_of_both_text_models_with_its_type() -> None:
    assert set(TYPES) == set(GenerateRequest.__dataclass_fields__)
    for tensors in (signatures.ENSEMBLE_INPUTS, signatures.TENSORRT_LLM_BLS_INPUTS):
        types = {tensor.name: WIRE.get(tensor.dtype, tensor.dtype) for tensor in tensors}
        for name, (wire, _) in TYPES.items():
            assert types[name] == wire


def test_only_what_is_given_is_sent() -> None:
    request = GenerateRequest(text_input="ü", max_tokens=3, stop_words=("a", "bc"), seed=2**64 - 1)
    inputs = {tensor.name(): tensor for tensor in make_inputs(request)}
    assert inputs.keys() == {
        "text_input",
        "max_tokens",
        "stream",
        "exclude_input_in_output",
        "stop_words",
        "seed",
    }
    assert inputs["stop_words"].shape() == [1, 2]


def test_an_absent_server_is_said_to_be_absent() -> None:
    with pytest.raises(ServeError, match="^127.0.0.1:1: ") as error:
        list(generate("127.0.0.1:1", GenerateRequest(text_input="a", max_tokens=1)))
    assert "llmc serve" in error.value.hint
    with pytest.raises(ServeError, match="127.0.0.1:1: no metrics"):
        read_metrics("127.0.0.1:1")


def test_a_server_that_stays_absent_is_asked_for_as_long_as_it_was_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    request = GenerateRequest(text_input="a", max_tokens=1)
    start = time.monotonic()
    with pytest.raises(UnavailableError, match="^127.0.0.1:1: "):
        list(generate("127.0.0.1:1", request, retry_seconds=1.2))
    assert 1.2 < time.monotonic() - start < 20
    assert "asking again, for 1 s" in caplog.text


def test_metrics_are_read_by_family_and_kind() -> None:
    text = b"""# HELP nv_trt_llm_request_metrics Requests
nv_inference_count{model="a",version="1"} 3
nv_trt_llm_request_metrics{model="a",request_type="active",version="1"} 2
nv_llm_input_token_len_bucket{model="a",response_metric_type="t",version="1",le="10"} 1e1
"""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request).start()
        metrics = read_metrics(f"127.0.0.1:{server.server_port}")
    assert metrics == {
        ("nv_trt_llm_request_metrics", "active"): 2.0,
        ("nv_llm_input_token_len_bucket", "t 10"): 10.0,
    }
