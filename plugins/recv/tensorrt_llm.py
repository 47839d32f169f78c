"""TensorRT-LLM's options of `recv`: those of `send`."""

from llmc.plugins.send.tensorrt_llm import OPTIONS

__all__ = ["OPTIONS"]
