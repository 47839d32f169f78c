"""The engine of the target `tensorrt-rtx`."""

from functools import partial
from typing import Any

from llmc.errors import ToolchainError
from llmc.runtime.engines import tensorrt_loading
from llmc.runtime.engines.tensorrt_loading import check

__all__ = ["check", "lacking", "load"]


def _import() -> Any:
    try:
        import tensorrt_rtx_bindings
    except ImportError as error:
        raise ToolchainError(
            f"TensorRT for RTX cannot be imported: {error}", hint="pip install 'llmc[rtx]'"
        ) from error
    return tensorrt_rtx_bindings


lacking = partial(tensorrt_loading.lacking, import_trt=_import)
load = partial(tensorrt_loading.load, import_trt=_import)
