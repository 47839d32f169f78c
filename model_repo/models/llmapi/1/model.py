"""Text to text by TensorRT-LLM's LLM API, in the tensors of NVIDIA's `llmapi` model.

It needs nothing of llmc: TensorRT-LLM 1.3 or later, with what that brings. `model.yaml` beside it
has the arguments of tensorrt_llm.LLM and, under `triton_config`, this model's own.

Everything of a request happens on one event loop in a thread of its own, so that no sender is asked
about its client after the last response: Triton would crash.

Source: NVIDIA/TensorRT-LLM, llmapi/llm.py (LLM.generate_async, RequestOutput) and
sampling_params.py; triton_backend/all_models/llmapi for the meaning of tensors.
"""

import asyncio
import json
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
import yaml

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
SAMPLING = (
    *("best_of", "temperature", "top_k", "top_p", "frequency_penalty", "presence_penalty"),
    *("max_tokens", "seed", "exclude_input_from_output"),
)
"""Inputs sampling_param_… that are one value, and SamplingParams' name for it."""

REASONS = ("finish_reason", "stop_reason")
"""Outputs that come when return_… asks for them, as text."""


class TritonPythonModel:
    """Holds the one LLM, which starts its ranks itself."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model that model.yaml names."""
        folder = Path(args["model_repository"]) / args["model_version"]
        settings = yaml.safe_load((folder / "model.yaml").read_text(encoding="utf-8"))
        own = settings.pop("triton_config")
        config = json.loads(args["model_config"])
        self._decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self._check_period = own["cancellation_check_period_ms"] / 1000
        try:
            from tensorrt_llm import LLM, SamplingParams
        except ImportError as error:
            raise pb_utils.TritonModelException(
                f"{error}: this model needs TensorRT-LLM 1.3 or later in the server's Python"
            ) from error
        self._sampling_params = SamplingParams
        self._llm = LLM(**settings)
        self._running: dict[int, tuple[str, Any, Any]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="llm", daemon=True)
        self._thread.start()
        self._tasks = {asyncio.run_coroutine_threadsafe(self._watch(), self._loop)}

    def execute(self, requests: list[Any]) -> None:
        """Start every request; its answer follows from the loop."""
        for request in requests:
            sender = request.get_response_sender()
            asyncio.run_coroutine_threadsafe(self._answer(request, sender), self._loop)

    def finalize(self) -> None:
        """Let what runs finish, then stop."""
        for task in self._tasks:
            task.cancel()
        asyncio.run_coroutine_threadsafe(self._drain(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._llm.shutdown()

    async def _answer(self, request: Any, sender: Any) -> None:
        key = id(sender)
        try:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            if _flag(inputs, "stop"):
                self._abort(request.request_id())
                sender.send(flags=FINAL)
                return
            streaming = _flag(inputs, "streaming")
            if streaming and not self._decoupled:
                raise ValueError("streaming: true, but the model is not decoupled")
            params = self._sampling_params(**read_sampling(inputs))
            output = self._llm.generate_async(
                read_prompt(inputs), sampling_params=params, streaming=streaming
            )
            self._running[key] = (request.request_id(), sender, output)
            async for part in output:
                if streaming and not part.finished:
                    sender.send(_response(part, inputs))
            del self._running[key]
            sender.send(_response(output, inputs), flags=FINAL)
        except Exception as error:
            self._running.pop(key, None)
            pb_utils.Logger.log_error(traceback.format_exc())
            failure = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
            sender.send(failure, flags=FINAL)

    def _abort(self, request_id: str) -> None:
        """End what was sent with this request id."""
        if not request_id:
            raise ValueError("stop: true needs the request id of the request to stop")
        for client_id, _, output in self._running.values():
            if client_id == request_id:
                output.abort()

    async def _watch(self) -> None:
        """End requests whose client is gone."""
        while True:
            await asyncio.sleep(self._check_period)
            for _, sender, output in list(self._running.values()):
                if sender.is_cancelled():
                    output.abort()

    async def _drain(self) -> None:
        while self._running:
            await asyncio.sleep(self._check_period)


def read_prompt(inputs: Mapping[str, Any]) -> str:
    """Return the text of a request, which has exactly one."""
    texts = inputs["text_input"].reshape(-1)
    if len(texts) != 1:
        raise ValueError(f"text_input: {len(texts)} prompts, expected 1")
    return str(texts[0], "utf-8")


def read_sampling(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a request says of SamplingParams; the prompt is left in unless it says no."""
    given: dict[str, Any] = {"exclude_input_from_output": False}
    for name in SAMPLING:
        array = inputs.get(f"sampling_param_{name}")
        if array is not None:
            given[name] = array.item()
    stop = inputs.get("sampling_param_stop")
    if stop is not None:
        given["stop"] = [str(word, "utf-8") for word in stop.reshape(-1)]
    return given


def _response(output: Any, inputs: Mapping[str, Any]) -> Any:
    """Return all text so far of each sequence, and what the request wants to know of them."""
    tensors = [_texts("text_output", [one.text for one in output.outputs])]
    for name in REASONS:
        if _flag(inputs, f"return_{name}"):
            tensors.append(_texts(name, [str(getattr(one, name)) for one in output.outputs]))
    if _flag(inputs, "return_cumulative_logprob"):
        values = [one.cumulative_logprob for one in output.outputs]
        array = np.array([np.nan if value is None else value for value in values], np.float32)
        tensors.append(pb_utils.Tensor("cumulative_logprob", array))
    return pb_utils.InferenceResponse(output_tensors=tensors)


def _texts(name: str, texts: list[str]) -> Any:
    return pb_utils.Tensor(name, np.array([text.encode() for text in texts], np.object_))


def _flag(inputs: Mapping[str, Any], name: str) -> bool:
    return name in inputs and bool(inputs[name].any())
