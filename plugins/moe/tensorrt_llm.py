"""TensorRT-LLM's options of `moe`: fused experts, or TensorRT's own layers."""

from llmc.plugins.tensorrt_llm_options import DTYPES, Option

OPTIONS: dict[str, Option] = {"moe_plugin": Option(default="auto", values=DTYPES)}
