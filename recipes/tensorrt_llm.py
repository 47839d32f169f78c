"""The recipe's variant for the target `tensorrt-llm`: which version, on which GPU."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from llmc.recipes.part import Part

LoraModule = Literal[
    "attn_qkv",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_dense",
    "mlp_h_to_4h",
    "mlp_4h_to_h",
    "mlp_gate",
    "mlp_router",
    "moe_h_to_4h",
    "moe_4h_to_h",
    "moe_gate",
    "moe_router",
]
"""What adapters can change in a decoder. Source: NVIDIA/TensorRT-LLM 0.17
tensorrt_llm/lora_manager.py (LORA_MODULE_IDS)."""


def _as_written(value: object) -> object:
    """Return the text of what YAML takes for a number: 1.2 without quotes is a version, too."""
    return str(value) if isinstance(value, float) else value


class TensorrtLlmTarget(Part):
    """Engines of TensorRT-LLM; built where it is installed, or by the job written for it."""

    kind: Literal["tensorrt-llm"]
    version: Annotated[
        Literal["0.21", "1.0", "1.1", "1.2", "1.3"], BeforeValidator(_as_written)
    ] = Field(
        default="1.2",
        description="Line of TensorRT-LLM that builds and serves; 1.3: it and later ones.",
    )
    gpu: str | None = Field(
        default=None,
        description="GPU, e.g. H100-80GB: says compute capability and memory; none: those two do.",
    )
    compute_capability: PositiveInt | None = Field(
        default=None,
        description="Compute capability, e.g. 89; none: of gpu, else of the GPU here, else 90.",
    )
    gpu_memory_gib: PositiveFloat | None = Field(
        default=None, description="Memory of a GPU; none: gpu's, or not held against the model."
    )
    build: Literal["auto", "here", "job"] = Field(
        default="auto",
        description="Where the engine is built: here, on this machine; job: where the job written"
        " for it is run; auto: here if this machine has the GPU and that line of TensorRT-LLM.",
    )
    workers: PositiveInt = Field(default=1, description="Ranks built at once, one GPU each.")
    max_beam_width: PositiveInt = Field(default=1, description="Most beams of a request.")
    opt_num_tokens: PositiveInt | None = Field(
        default=None, description="Tokens of a step to optimize for; none: max_batch_size's."
    )
    gather_context_logits: bool = Field(
        default=False, description="Let requests ask for the logits of their prompts."
    )
    max_prompt_embedding_table_size: NonNegativeInt = Field(
        default=0, description="Most rows of a request's prompt embedding table; 0: none."
    )
    lora_target_modules: tuple[LoraModule, ...] = Field(
        default=(), strict=False, description="Modules that adapters change; with lora_plugin."
    )
    lora_dir: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="Adapters in Hugging Face's format, the first of which names the modules.",
    )
    max_lora_rank: PositiveInt = Field(default=64, description="Largest rank of an adapter.")
    strip_plan: bool = Field(
        default=False, description="Leave weights out of the engine, for trtllm-refit."
    )
    weight_streaming: bool = Field(
        default=False, description="Let weights stay in host memory when served."
    )
    timing_cache: str | None = Field(
        default=None,
        description="Timing cache to read and write; none: OUT/timing.cache, of a job model.cache.",
    )
