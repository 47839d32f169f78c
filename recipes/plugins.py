"""The recipe's settings of fused ops, under TensorRT-LLM's names: one section for every target.

Every target reads `tokens_per_block`. The rest chooses among TensorRT-LLM's kernels for an op; the
other targets have one kernel for each, and say that they leave it.
"""

from typing import Literal

from pydantic import Field

from llmc.recipes.part import Part

PluginDtype = Literal["auto", "float16", "float32", "bfloat16", "none"]
"""auto: the checkpoint's dtype; none: off."""

Fp8Plugin = Literal["fp8", "none"]


class PluginRecipe(Part):
    """Settings of the fused ops; none: TensorRT-LLM's default."""

    tokens_per_block: Literal[8, 16, 32, 64, 128] = Field(
        default=32, description="Tokens in one block of the paged KV cache."
    )
    gpt_attention_plugin: PluginDtype | None = Field(
        default=None, description="Attention with in-place KV cache."
    )
    context_fmha: bool | None = Field(default=None, description="Fused attention over prompts.")
    use_paged_context_fmha: bool | None = Field(
        default=None, description="Fused attention over prompts that reads the paged KV cache."
    )
    use_fp8_context_fmha: bool | None = Field(
        default=None, description="Attention over prompts in FP8, with FP8 weights."
    )
    fuse_fp4_quant: bool | None = Field(
        default=None, description="Attention that writes its result in FP4, with NVFP4 weights."
    )
    streamingllm: bool | None = Field(default=None, description="Attention sinks and a window.")
    gemm_plugin: PluginDtype | Literal["fp8", "nvfp4"] | None = Field(
        default=None, description="cuBLASLt for products that are not quantized, or FP8."
    )
    low_latency_gemm_plugin: Fp8Plugin | None = Field(
        default=None, description="FP8 products for small batches."
    )
    fp8_rowwise_gemm_plugin: PluginDtype | None = Field(
        default=None,
        description="FP8 products of inputs scaled per token; set by FP8_PER_CHANNEL_PER_TOKEN.",
    )
    gemm_allreduce_plugin: Literal["float16", "bfloat16", "none"] | None = Field(
        default=None, description="Product and allreduce in one kernel."
    )
    use_fused_mlp: bool | None = Field(
        default=None, description="One product for both halves of a gated MLP."
    )
    gemm_swiglu_plugin: Fp8Plugin | None = Field(
        default=None, description="Both products of a gated MLP and its activation in one kernel."
    )
    low_latency_gemm_swiglu_plugin: Fp8Plugin | None = Field(
        default=None, description="FP8 gated MLP for small batches."
    )
    moe_plugin: PluginDtype | None = Field(default=None, description="Fused experts.")
    norm_quant_fusion: bool | None = Field(
        default=None, description="Norm and quantization in one kernel."
    )
    nccl_plugin: PluginDtype | None = Field(default=None, description="Collectives over NCCL.")
    reduce_fusion: bool | None = Field(
        default=None, description="Allreduce, residual and norm in one kernel."
    )
    user_buffer: bool | None = Field(
        default=None, description="Allreduce without copies; needs reduce_fusion."
    )
    pp_reduce_scatter: bool | None = Field(
        default=None, description="Pipeline stages exchange slices; for large MoE models."
    )
    lora_plugin: PluginDtype | None = Field(
        default=None,
        description="Adapters, chosen by each request; with target.lora_target_modules.",
    )
    dora_plugin: bool | None = Field(
        default=None, description="Adapters of DoRA, magnitudes included."
    )
    remove_input_padding: bool | None = Field(
        default=None, description="Pack the tokens of all sequences."
    )
    multiple_profiles: bool | None = Field(
        default=None, description="Several optimization profiles."
    )
    manage_weights: bool | None = Field(
        default=None, description="Weights beside the engine instead of in it: builds faster."
    )

    @property
    def kernel_choices(self) -> dict[str, bool | str]:
        """What the recipe says of TensorRT-LLM's kernels, by option."""
        said = self.model_dump(exclude={"tokens_per_block"})
        return {name: value for name, value in said.items() if value is not None}
