"""Token ids to text, in the tensors of TensorRT-LLM's postprocessing model.

The executor's own text, where it comes along, is passed on: it is cut at stop strings and never
splits a character. Without it (another tensorrt_llm model in the middle) the tokens of each
response are decoded.
"""

import collections
import json
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from llmc.runtime.tokenizer import Tokenizer


class TritonPythonModel:
    """Stateless: a response is decoded on its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the tokenizer; its folder is relative to the repository that holds this model."""
        parameters = json.loads(args["model_config"])["parameters"]
        repository = Path(args["model_repository"]).parent
        self._tokenizer = Tokenizer.open(repository / parameters["tokenizer_dir"]["string_value"])
        self._stopped: collections.deque[str] = collections.deque(maxlen=256)
        # Without llmc's tensors there is no STOP_ID, and nobody to tell.
        self._llm = parameters.get("tensorrt_llm_model_name", {}).get("string_value", "")
        self._skip_special_tokens = parameters["skip_special_tokens"]["string_value"] == "true"

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request, each with its text or its own error."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            if "STOP_ID" in inputs and request.is_cancelled():
                self._stop_once(str(inputs["STOP_ID"].reshape(-1)[0], "utf-8"))
            text = inputs.get("OUTPUT_TEXT")
            if text is None:
                text = self._decode(inputs["TOKENS_BATCH"], inputs["SEQUENCE_LENGTH"])
            # TensorRT-LLM's model returns one dimension here, and its clients index it so.
            tensor = pb_utils.Tensor("OUTPUT", text.reshape(-1))
            return pb_utils.InferenceResponse(output_tensors=[tensor])
        except Exception as error:
            pb_utils.Logger.log_error(traceback.format_exc())
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(repr(error)))

    def _stop_once(self, stop_id: str) -> None:
        """Stop a request without waiting: every stream's text passes through this model."""
        if stop_id not in self._stopped:
            self._stopped.append(stop_id)
            threading.Thread(target=self._stop, args=(stop_id,), daemon=True).start()

    def _stop(self, stop_id: str) -> None:
        """Tell tensorrt_llm that the client of an ensemble is gone.

        Triton's ensemble cancels only the step it schedules next, which is this one: the one
        whose tokens come too late. Source: triton-inference-server/core, ensemble_scheduler.cc,
        ScheduleSteps.
        """
        one = np.ones((1, 1), np.int32)
        request = pb_utils.InferenceRequest(
            model_name=self._llm,
            request_id=stop_id,
            inputs=[
                pb_utils.Tensor("input_ids", one),
                pb_utils.Tensor("input_lengths", one),
                pb_utils.Tensor("request_output_len", one),
                pb_utils.Tensor("stop", np.ones((1, 1), np.bool_)),
            ],
            requested_output_names=[],
        )
        for response in request.exec(decoupled=True):
            if response.has_error():
                pb_utils.Logger.log_error(response.error().message())

    def _decode(self, tokens: Any, lengths: Any) -> Any:
        """Decode tokens [batch, beams, length], of which lengths [batch, beams] are valid."""
        texts = [
            self._tokenizer.decode(
                beam[:length].tolist(), skip_special_tokens=self._skip_special_tokens
            ).encode()
            for row, row_lengths in zip(tokens, lengths, strict=True)
            for beam, length in zip(row, row_lengths, strict=True)
        ]
        return np.array(texts, np.object_)
