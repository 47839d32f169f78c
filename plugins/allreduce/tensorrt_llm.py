"""TensorRT-LLM's options of `allreduce`: NCCL, and kernels of one with what stands around it."""

from llmc.plugins.linear.tensorrt_llm import GEMM_ALLREDUCE
from llmc.plugins.tensorrt_llm_options import DTYPES, Option

NCCL = Option(default="auto", values=DTYPES)

OPTIONS: dict[str, Option] = {
    "nccl_plugin": NCCL,
    "gemm_allreduce_plugin": GEMM_ALLREDUCE,
    "reduce_fusion": Option(default=False),
    "user_buffer": Option(default=False, needs={True: ("FP8",)}),
}
