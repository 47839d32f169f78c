"""Text to text by calling the three models in a row: TensorRT-LLM's business logic scripting model.

For clients that are written for it; the ensemble does the same. Streamed text is exact, whether
tensorrt_llm passes its text along, as llmc's does, or tokens alone, as TensorRT-LLM's.
"""

import json
import threading
import traceback
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from llmc.errors import LlmcError, ServeError
from llmc.model_repo import signatures
from llmc.runtime.left_behind import end_with_server
from llmc.runtime.triton_text import StreamedTexts, StreamKey

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
INDICES = ("batch_index", "sequence_index")
"""Outputs that tell the answers of one request apart."""

REFUSED = (
    "image_input",
    "image_bytes_input",
    "image_url_input",
    "video_bytes_input",
    "num_draft_tokens",
    "use_draft_logits",
)
"""Inputs of models llmc does not build: multimodal encoders and draft models."""


class TritonPythonModel:
    """A thread per request in flight: each waits for the model below most of the time."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the threads; there is nothing to load."""
        # Requests whose answers a server that stops never brings keep `finalize` waiting.
        end_with_server(args["model_name"])
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self._llm = parameters["tensorrt_llm_model_name"]
        self._accumulate = parameters["accumulate_tokens"] == "true"
        # Not a parameter of TensorRT-LLM's model; its default there.
        self._check_period = int(parameters.get("cancellation_check_period_ms", 100)) / 1000
        own = {tensor["name"] for tensor in (*config["input"], *config["output"])}
        self._has_text = "finish_reason" in own
        self._outputs = [
            tensor.name
            for tensor in signatures.TENSORRT_LLM_OUTPUTS
            if self._has_text or not tensor.own
        ]
        self._decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self._pool = ThreadPoolExecutor(max(config["max_batch_size"], 1), "bls")
        self._lock = threading.Lock()
        self._in_flight: dict[str, Any] = {}
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._watcher.start()

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Answer all requests at once; a decoupled one through its sender, piece by piece."""
        if self._decoupled:
            for request in requests:
                self._pool.submit(self._stream, request, request.get_response_sender())
            return None
        return list(self._pool.map(self._answer, requests))

    def finalize(self) -> None:
        """Let what runs finish, then stop."""
        self._pool.shutdown()
        self._stopping.set()
        self._watcher.join()

    def _stream(self, request: Any, sender: Any) -> None:
        try:
            for response in self._run(request, sender):
                sender.send(response)
        except Exception as error:
            sender.send(_failure(error))
        finally:
            sender.send(flags=FINAL)

    def _answer(self, request: Any) -> Any:
        try:
            (response,) = self._run(request, request)
            return response
        except Exception as error:
            return _failure(error)

    def _run(self, request: Any, cancellable: Any) -> Iterator[Any]:
        """Pass one request through the models; `cancellable` tells whether its client is gone."""
        inputs = {tensor.name(): _batched(tensor.as_numpy()) for tensor in request.inputs()}
        refused = [name for name in REFUSED if name in inputs and inputs[name].any()]
        if refused:
            raise ServeError(f"not supported by this engine: {', '.join(refused)}")
        prompts = _call(
            "preprocessing",
            _select(inputs, signatures.PREPROCESSING_FROM_TEXT),
            list(signatures.TENSORRT_LLM_FROM_PREPROCESSING.values()),
        )
        inner_id = str(uuid.uuid4())
        with self._lock:
            self._in_flight[inner_id] = cancellable
        try:
            answers = self._generate(inputs, prompts, inner_id)
            if "stream" in inputs and inputs["stream"].any():
                yield from self._stream_texts(answers)
            else:
                for answer in answers:
                    yield _respond(answer, _postprocess(answer))
        finally:
            with self._lock:
                del self._in_flight[inner_id]

    def _generate(
        self, inputs: dict[str, Any], prompts: dict[str, Any], inner_id: str
    ) -> Iterator[dict[str, Any]]:
        request = pb_utils.InferenceRequest(
            model_name=self._llm,
            request_id=inner_id,
            inputs=[
                *_select(prompts, signatures.TENSORRT_LLM_FROM_PREPROCESSING),
                *_select(inputs, signatures.TENSORRT_LLM_FROM_TEXT),
            ],
            requested_output_names=self._outputs,
        )
        if not self._decoupled:
            yield _read(request.exec(decoupled=False))
            return
        for response in request.exec(decoupled=True):
            outputs = _read(response)
            # The last response may be nothing but the flag that says so.
            if outputs:
                yield outputs

    def _stream_texts(self, answers: Iterator[dict[str, Any]]) -> Iterator[Any]:
        """Yield a response for each answer, with the text it adds or, accumulated, all so far."""
        texts = StreamedTexts(_decode)
        whole: dict[StreamKey, str] = {}
        for answer in answers:
            key = tuple((name, int(answer[name].item())) for name in INDICES if name in answer)
            if self._has_text or answer["output_ids"].shape[1] > 1:
                # Beams are no streams: a later token may change all before it.
                (text, *more) = (str(text, "utf-8") for text in _postprocess(answer))
            else:
                text, more = texts.push(key, answer["output_ids"][0, 0].tolist()), []
            whole[key] = whole.get(key, "") + text
            first = whole[key] if self._accumulate and not more else text
            yield _respond(answer, _as_array([first, *more]))
        for key, text in texts.flush().items():
            indices = {name: np.array([[index]], np.int32) for name, index in key}
            yield _respond(indices, _as_array([whole[key] + text if self._accumulate else text]))

    def _watch(self) -> None:
        while not self._stopping.wait(self._check_period):
            try:
                for inner_id in list(self._in_flight):
                    # Not after the last response was sent: Triton would crash.
                    with self._lock:
                        cancellable = self._in_flight.get(inner_id)
                        gone = cancellable is not None and cancellable.is_cancelled()
                    if gone:
                        self._stop(inner_id)
            except Exception:
                pb_utils.Logger.log_error(traceback.format_exc())

    def _stop(self, inner_id: str) -> None:
        """Cancel the inner request: Triton does not know that it is one."""
        one = np.ones((1, 1), np.int32)
        request = pb_utils.InferenceRequest(
            model_name=self._llm,
            request_id=inner_id,
            inputs=[
                pb_utils.Tensor("input_ids", one),
                pb_utils.Tensor("input_lengths", one),
                pb_utils.Tensor("request_output_len", one),
                pb_utils.Tensor("stop", np.ones((1, 1), np.bool_)),
            ],
            requested_output_names=[],
        )
        if self._decoupled:
            for response in request.exec(decoupled=True):
                _read(response)
        else:
            _read(request.exec(decoupled=False))


def _postprocess(answer: dict[str, Any]) -> Any:
    """Return the texts [beams] of one answer of tensorrt_llm."""
    sources = signatures.POSTPROCESSING_FROM_TENSORRT_LLM
    return _call("postprocessing", _select(answer, sources), ["OUTPUT"])["OUTPUT"]


def _decode(tokens: Sequence[Sequence[int]]) -> list[str]:
    """Return the text of each list of tokens, which the model sees as beams of one answer."""
    lengths = np.array([[len(row) for row in tokens]], np.int32)
    rows = np.zeros((1, len(tokens), int(lengths.max())), np.int32)
    for index, row in enumerate(tokens):
        rows[0, index, : len(row)] = row
    texts = _postprocess({"output_ids": rows, "sequence_length": lengths})
    return [str(text, "utf-8") for text in texts.reshape(-1)]


def _respond(answer: dict[str, Any], texts: Any) -> Any:
    """Return the response to the client for one answer of tensorrt_llm and its text."""
    passed = {name: answer[name] for name in signatures.PASSED_THROUGH if name in answer}
    tensors = {"text_output": texts, **passed}
    return pb_utils.InferenceResponse(
        output_tensors=[pb_utils.Tensor(name, array) for name, array in tensors.items()]
    )


def _as_array(texts: Sequence[str]) -> Any:
    return np.array([text.encode() for text in texts], np.object_)


def _call(model: str, inputs: list[Any], outputs: list[str]) -> dict[str, Any]:
    request = pb_utils.InferenceRequest(
        model_name=model, inputs=inputs, requested_output_names=outputs
    )
    return _read(request.exec())


def _read(response: Any) -> dict[str, Any]:
    if response.has_error():
        raise ServeError(response.error().message())
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def _select(arrays: dict[str, Any], sources: dict[str, str]) -> list[Any]:
    """Return a tensor for every name whose source is there."""
    return [
        pb_utils.Tensor(name, arrays[source])
        for name, source in sources.items()
        if source in arrays
    ]


def _batched(array: Any) -> Any:
    """Give a scalar input, which Triton reshapes to [batch], its second dimension back."""
    return array[:, None] if array.ndim == 1 else array


def _failure(error: Exception) -> Any:
    if isinstance(error, LlmcError):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(error.message))
    pb_utils.Logger.log_error("".join(traceback.format_exception(error)))
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(repr(error)))
