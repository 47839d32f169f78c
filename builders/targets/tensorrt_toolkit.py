"""A TensorRT that was found: its module, one builder, and what it complained of.

TensorRT explains a failure in its log and nowhere else, the cause in the line before the last.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from llmc.builders.targets.tensorrt_module import import_tensorrt
from llmc.builders.targets.tensorrt_rtx_module import import_tensorrt_rtx
from llmc.errors import ToolchainError

log = logging.getLogger(__name__)

_NOISE = ("Unable to determine GPU memory usage", "CUDA initialization failure", "cudaError")
"""Said on a machine without a GPU, where it means nothing."""
_KEPT = 20

_MODULES: dict[str, Callable[[], Any]] = {
    "tensorrt-rtx": import_tensorrt_rtx,
    "tensorrt": import_tensorrt,
}
"""Target → what imports its TensorRT."""


@dataclass(slots=True, kw_only=True)
class Toolkit:
    """`trt` is the imported module; `builder` an instance of its Builder."""

    trt: Any
    builder: Any
    messages: list[str] = field(default_factory=list)

    @classmethod
    def of_target(cls, target: str) -> "Toolkit":
        """Start the TensorRT of a target. Raises: ToolchainError when it is not installed."""
        return cls.start(_MODULES[target]())

    @classmethod
    def start(cls, trt: Any) -> "Toolkit":
        """Start a module's builder. Raises: ToolchainError when it does not, as without a GPU."""
        messages: list[str] = []
        try:
            builder = trt.Builder(_logger(trt, messages))
        except TypeError as error:
            raise ToolchainError(
                f"the builder of TensorRT {trt.__version__} does not start:"
                f" {'; '.join(messages) or error}"
            ) from error
        return cls(trt=trt, builder=builder, messages=messages)

    def last_error(self) -> str:
        """Return what was logged as an error since the last call, in one line."""
        text = "; ".join(dict.fromkeys(self.messages)) or "no reason was logged"
        self.messages.clear()
        return text


def _logger(trt: Any, messages: list[str]) -> Any:
    severity = trt.ILogger.Severity

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, level: Any, text: str) -> None:
            if any(noise in text for noise in _NOISE):
                return
            if level in (severity.ERROR, severity.INTERNAL_ERROR):
                messages.append(text.strip())
                del messages[:-_KEPT]
            log.debug("%s", text)

    return Logger()
