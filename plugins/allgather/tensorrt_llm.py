"""TensorRT-LLM's option of `allgather`."""

from llmc.plugins.allreduce.tensorrt_llm import NCCL
from llmc.plugins.tensorrt_llm_options import Option

OPTIONS: dict[str, Option] = {"nccl_plugin": NCCL}
