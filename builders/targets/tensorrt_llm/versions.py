"""TensorRT-LLM's versions, under the name they had before servers read them, too."""

from llmc.tensorrt_llm_versions import ENGINE_CONFIG_KEYS, VERSIONS, Version, lines_with

__all__ = ["ENGINE_CONFIG_KEYS", "VERSIONS", "Version", "lines_with"]
