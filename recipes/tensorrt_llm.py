"""The recipe's variant for the target `tensorrt-llm`: which version, which GPU, which plugins."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt

from llmc.recipes.part import Part

PluginDtype = Literal["auto", "float16", "float32", "bfloat16", "none"]
"""auto: the checkpoint's dtype; none: off."""


class TensorrtLlmPlugins(Part):
    """Options of PluginConfig, under trtllm-build's names; none: the version's own default."""

    gpt_attention_plugin: PluginDtype | None = Field(
        default=None, description="Attention with in-place KV cache."
    )
    gemm_plugin: PluginDtype | Literal["fp8", "nvfp4"] | None = Field(
        default=None, description="cuBLASLt for products that are not quantized, or FP8."
    )
    gemm_swiglu_plugin: Literal["fp8", "none"] | None = Field(
        default=None, description="Both products of a gated MLP and its activation in one kernel."
    )
    low_latency_gemm_plugin: Literal["fp8", "none"] | None = Field(
        default=None, description="FP8 products for small batches."
    )
    low_latency_gemm_swiglu_plugin: Literal["fp8", "none"] | None = Field(
        default=None, description="FP8 gated MLP for small batches."
    )
    nccl_plugin: PluginDtype | None = Field(default=None, description="Collectives over NCCL.")
    moe_plugin: PluginDtype | None = Field(default=None, description="Fused experts.")
    context_fmha: bool | None = Field(default=None, description="Fused attention over prompts.")
    remove_input_padding: bool | None = Field(
        default=None, description="Pack the tokens of all sequences."
    )
    use_paged_context_fmha: bool | None = Field(
        default=None, description="Fused attention over prompts that reads the paged KV cache."
    )
    use_fp8_context_fmha: bool | None = Field(
        default=None, description="Attention over prompts in FP8, with FP8 weights."
    )
    reduce_fusion: bool | None = Field(
        default=None, description="Allreduce, residual and norm in one kernel."
    )
    user_buffer: bool | None = Field(
        default=None, description="Allreduce without copies; needs reduce_fusion."
    )
    norm_quant_fusion: bool | None = Field(
        default=None, description="Norm and quantization in one kernel."
    )
    multiple_profiles: bool | None = Field(
        default=None, description="Several optimization profiles."
    )
    use_fused_mlp: bool | None = Field(
        default=None, description="One product for both halves of a gated MLP."
    )
    pp_reduce_scatter: bool | None = Field(
        default=None, description="Pipeline stages exchange slices; for large MoE models."
    )
    streamingllm: bool | None = Field(default=None, description="Attention sinks and a window.")


def _as_written(value: object) -> object:
    """Return the text of what YAML takes for a number: 1.2 without quotes is a version, too."""
    return str(value) if isinstance(value, float) else value


class TensorrtLlmTarget(Part):
    """Engines of TensorRT-LLM; built where it is installed, or by the job written for it."""

    kind: Literal["tensorrt-llm"]
    version: Annotated[
        Literal["0.21", "1.0", "1.1", "1.2", "1.3"], BeforeValidator(_as_written)
    ] = Field(default="1.2", description="Line of TensorRT-LLM that builds and serves.")
    gpu: str | None = Field(
        default=None,
        description="GPU, e.g. H100-80GB: says compute capability and memory; none: those two do.",
    )
    compute_capability: PositiveInt = Field(
        default=90, description="Compute capability of the GPU, e.g. 89, where gpu is none."
    )
    gpu_memory_gib: PositiveFloat | None = Field(
        default=None, description="Memory of a GPU; none: gpu's, or not held against the model."
    )
    workers: PositiveInt = Field(default=1, description="Ranks built at once, one GPU each.")
    max_beam_width: PositiveInt = Field(default=1, description="Most beams of a request.")
    strip_plan: bool = Field(
        default=False, description="Leave weights out of the engine, for trtllm-refit."
    )
    weight_streaming: bool = Field(
        default=False, description="Let weights stay in host memory when served."
    )
    timing_cache: str | None = Field(
        default=None, description="Timing cache to read and write; none: model.cache, written."
    )
    plugins: TensorrtLlmPlugins = Field(
        default=TensorrtLlmPlugins(), description="Options of PluginConfig."
    )
