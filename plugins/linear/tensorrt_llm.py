"""TensorRT-LLM's options of `linear`: who computes the product, by quantization.

Those without a flag the builder sets by itself, from the checkpoint's quant_algo.
"""

from llmc.plugins.tensorrt_llm_options import DTYPES, Option

GEMM_ALLREDUCE = Option(default=None, values=("float16", "bfloat16", "none"))

OPTIONS: dict[str, Option] = {
    "gemm_plugin": Option(
        default=None,
        values=(*DTYPES, "fp8", "nvfp4"),
        needs={"fp8": ("FP8",), "nvfp4": ("NVFP4",)},
    ),
    "low_latency_gemm_plugin": Option(
        default=None, values=("fp8", "none"), needs={"fp8": ("FP8",)}, refused=(100,)
    ),
    "fp8_rowwise_gemm_plugin": Option(
        default=None,
        values=DTYPES,
        needs={
            value: ("FP8_PER_CHANNEL_PER_TOKEN",)
            for value in ("auto", "float16", "float32", "bfloat16")
        },
        refused=(100,),
    ),
    "gemm_allreduce_plugin": GEMM_ALLREDUCE,
    "weight_only_quant_matmul_plugin": Option(default=None, values=DTYPES, flag=False),
    "weight_only_groupwise_quant_matmul_plugin": Option(default=None, values=DTYPES, flag=False),
    "smooth_quant_plugins": Option(default=True, flag=False),
    "smooth_quant_gemm_plugin": Option(default=None, values=DTYPES, flag=False),
    "qserve_gemm_plugin": Option(default=None, values=DTYPES, flag=False),
    "quantize_per_token_plugin": Option(default=False, flag=False),
    "quantize_tensor_plugin": Option(default=False, flag=False),
}
