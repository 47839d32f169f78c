"""Imports TensorRT for RTX, from the one place that may."""

from typing import Any

from llmc.errors import ToolchainError


def import_tensorrt_rtx() -> Any:
    """Return TensorRT for RTX's module. Raises: ToolchainError when it is not installed."""
    try:
        import tensorrt_rtx_bindings
    except ImportError as error:
        raise ToolchainError(
            f"TensorRT for RTX cannot be imported: {error}",
            hint="pip install 'llmc[rtx]' (tensorrt_rtx_cu13_libs and tensorrt_rtx_cu13_bindings)",
        ) from error
    return tensorrt_rtx_bindings
