"""TensorRT-LLM's options of `gated_activation`: one kernel with the product before it."""

from llmc.plugins.tensorrt_llm_options import Option

OPTIONS: dict[str, Option] = {
    "use_fused_mlp": Option(default=True),
    "gemm_swiglu_plugin": Option(
        default=None, values=("fp8", "none"), needs={"fp8": ("FP8",)}, only=(90,)
    ),
    "low_latency_gemm_swiglu_plugin": Option(
        default=None, values=("fp8", "none"), needs={"fp8": ("FP8",)}, refused=(100,)
    ),
}
