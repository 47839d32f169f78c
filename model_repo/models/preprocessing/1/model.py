"""Text to token ids, in the tensors of TensorRT-LLM's preprocessing model."""

import json
import traceback
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from llmc.errors import LlmcError
from llmc.runtime.tokenizer import Tokenizer
from llmc.runtime.triton_prompt import read_prompts


class TritonPythonModel:
    """Stateless: a request is tokenized on its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the tokenizer; its folder is relative to the repository that holds this model."""
        parameters = json.loads(args["model_config"])["parameters"]
        repository = Path(args["model_repository"]).parent
        self._tokenizer = Tokenizer.open(repository / parameters["tokenizer_dir"]["string_value"])
        self._add_special_tokens = parameters["add_special_tokens"]["string_value"] == "true"

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request, each with its tokens or its own error."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            outputs = read_prompts(
                inputs, self._tokenizer, add_special_tokens=self._add_special_tokens
            )
            tensors = [pb_utils.Tensor(name, array) for name, array in outputs.items()]
            return pb_utils.InferenceResponse(output_tensors=tensors)
        except LlmcError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(error.message))
        except Exception as error:
            pb_utils.Logger.log_error(traceback.format_exc())
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(repr(error)))
