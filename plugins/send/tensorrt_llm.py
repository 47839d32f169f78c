"""TensorRT-LLM's options of `send`: NCCL, and slices between the stages of a pipeline."""

from llmc.plugins.allreduce.tensorrt_llm import NCCL
from llmc.plugins.tensorrt_llm_options import Option

PP_REDUCE_SCATTER = Option(default=False)

OPTIONS: dict[str, Option] = {"nccl_plugin": NCCL, "pp_reduce_scatter": PP_REDUCE_SCATTER}
