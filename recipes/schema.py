"""The recipe: every setting of a build, with its default and what it means.

A default is written here and nowhere else. Names are TensorRT-LLM's where it has them. Whether a
value is available here and now (a quantization format, a split of this model) is not a matter of
the schema: the pipeline asks that before it works, and lists every reason at once.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    Discriminator,
    Field,
    FiniteFloat,
    PositiveFloat,
    PositiveInt,
    Strict,
    Tag,
)

from llmc.recipes.part import Part
from llmc.recipes.plugins import PluginRecipe
from llmc.recipes.serve import ServeRecipe
from llmc.recipes.tensorrt_llm import TensorrtLlmTarget


class CalibrationRecipe(Part):
    """What activations are looked at, for algorithms that need to."""

    data: Path | None = Field(
        default=None,
        strict=False,
        description="Text, or .jsonl with text, prompt or messages; none: the text llmc has.",
    )
    samples: PositiveInt = Field(default=256, description="Most sequences taken from the data.")
    max_tokens: PositiveInt = Field(default=512, description="Most tokens of a sequence.")


class QuantizationRecipe(Part):
    """How weights and KV cache are stored."""

    algo: str | None = Field(
        default=None,
        description="Quantization algorithm of the weights, e.g. W8A16, or auto: by layer; none:"
        " stored as `dtype`.",
    )
    target_bits: float | None = Field(
        default=None,
        gt=0,
        description="auto: most bits of a layer's weight on average, scales included.",
    )
    candidates: tuple[str, ...] = Field(
        default=("W4A16_AWQ", "FP8"),
        strict=False,
        description="auto: what a layer's attention or MLP may be quantized to, or left as it is.",
    )
    kv_cache: str | None = Field(
        default=None, description="Quantization of the KV cache; none: stored as `dtype`."
    )
    exclude: tuple[str, ...] | None = Field(
        default=None,
        strict=False,
        description="Modules left unquantized, as patterns; none: TensorRT-LLM's list.",
    )
    group_size: PositiveInt | None = Field(
        default=None,
        description="Input channels that share an INT4 scale; none: the largest that fits.",
    )
    alpha: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="SmoothQuant: how much of the inputs' range moves into the weights; none:"
        " what is best for each input.",
    )
    clamp: PositiveFloat | None = Field(
        default=None,
        description="FP8_PER_CHANNEL_PER_TOKEN: bound of the inputs' magnitudes; none: unbounded."
        " NVIDIA's converter writes 1200.",
    )
    layout: Literal["sm80", "sm90"] | None = Field(
        default=None,
        description="GPU generation that packed weights are permuted for; none: portable.",
    )
    calibration: CalibrationRecipe = Field(
        default=CalibrationRecipe(), description="What activations are looked at."
    )


class MappingRecipe(Part):
    """How the model is split over ranks."""

    tp: PositiveInt = Field(default=1, description="Tensor parallel size.")
    pp: PositiveInt = Field(default=1, description="Pipeline parallel size.")
    moe_tp: PositiveInt | None = Field(
        default=None, description="Tensor parallel size inside an expert; none: tp / moe_ep."
    )
    moe_ep: PositiveInt | None = Field(
        default=None, description="Expert parallel size; moe_tp * moe_ep = tp."
    )
    use_parallel_embedding: bool = Field(
        default=False, description="Split the vocabulary embedding over tp ranks."
    )
    embedding_sharding_dim: Literal[0, 1] = Field(
        default=0, description="Split the embedding by vocabulary (0) or by hidden size (1)."
    )


class CpuTarget(Part):
    """Native kernels on x86-64; the engine runs on any CPU the kernels know."""

    kind: Literal["cpu"] = Field(default="cpu", description="Engine for x86-64 CPUs.")


ComputeCapability = Literal[75, 80, 86, 89, 120, 121]
GpuCapability = Literal[75, 80, 86, 89, 90, 100, 103, 110, 120, 121]
"""What TensorRT for RTX builds plans for: Turing to Blackwell, data-centre Hopper and Blackwell
excepted."""


class TensorRtxTarget(Part):
    """Plans of TensorRT for RTX; built anywhere, run on a GPU of a named compute capability."""

    kind: Literal["tensorrt-rtx"]
    compute_capabilities: tuple[ComputeCapability, ...] = Field(
        default=(89, 120),
        strict=False,
        description="GPUs to build for; one plan for each class of them: 75, 80 and 86, 89, 120"
        " and 121.",
    )
    weights: Literal["auto", "embed", "refit"] = Field(
        default="auto",
        description="embed: in the plan; refit: given to the plan when it is loaded; auto: refit"
        " above strip_above_gib.",
    )
    strip_above_gib: float = Field(
        default=4.0,
        gt=0,
        description="Weights of a rank above which auto leaves them out: embedding them takes three"
        " times their size in memory.",
    )
    allow_emulated: bool = Field(
        default=False,
        description="Build quantizations that the GPU would undo before it computes.",
    )


class TensorrtTarget(Part):
    """Plans of TensorRT, built on the GPU they run on."""

    kind: Literal["tensorrt"]
    compute_capability: GpuCapability | None = Field(
        default=None,
        description="The GPU that must be there, e.g. 90; none: whichever is.",
    )
    allow_emulated: bool = Field(
        default=False,
        description="Build with a KV cache that is rounded but stays in 16 bits.",
    )


def _kind_of(value: object) -> str:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return str(kind or CpuTarget.model_fields["kind"].default)


TargetRecipe = Annotated[
    Annotated[CpuTarget, Tag("cpu")]
    | Annotated[TensorRtxTarget, Tag("tensorrt-rtx")]
    | Annotated[TensorrtTarget, Tag("tensorrt")]
    | Annotated[TensorrtLlmTarget, Tag("tensorrt-llm")],
    Discriminator(_kind_of),
]
"""One variant for each name in llmc.targets.TARGETS; without a kind, cpu."""


class BuildRecipe(Part):
    """Limits compiled into the engine."""

    max_batch_size: PositiveInt = Field(default=64, description="Most sequences in one step.")
    max_num_tokens: PositiveInt = Field(default=4096, description="Most tokens in one step.")
    max_input_len: PositiveInt | None = Field(
        default=None, description="Most tokens of a prompt; none: max_seq_len - 1."
    )
    max_seq_len: PositiveInt | None = Field(
        default=None,
        description="Most tokens of prompt and answer; none: the model's max_position_embeddings.",
    )
    plugins: PluginRecipe = Field(default=PluginRecipe(), description="Settings of the fused ops.")


class GateRecipe(Part):
    """How good the engine must be, measured by running it beside an unquantized one."""

    enabled: bool = Field(
        default=True,
        description="Measure the engine; one that was not is neither emitted nor served.",
    )
    texts: tuple[Annotated[Path, Strict(False)], ...] | None = Field(
        default=None,
        strict=False,
        description="Text files to measure on, a domain each, relative to the recipe's file;"
        " none: prose and code that come with llmc.",
    )
    max_tokens: Annotated[int, Field(ge=2)] = Field(
        default=4096, description="Most tokens read of each text."
    )
    reference: Path | None = Field(
        default=None,
        strict=False,
        description="Directory of an engine or Hugging Face model to compare with, relative to the"
        " recipe's file; none: `model` itself, unquantized.",
    )
    reference_dtype: Literal["float32", "float16", "bfloat16"] = Field(
        default="float32", description="Type of the reference's weights and arithmetic."
    )
    max_kl: Annotated[FiniteFloat, Field(ge=0)] | None = Field(
        default=None,
        description="Largest mean KL divergence of a token from the reference, in nats;"
        " none: by quantization.",
    )
    max_perplexity_increase: FiniteFloat | None = Field(
        default=None,
        description="Largest perplexity / reference's perplexity - 1; none: by quantization.",
    )
    min_top1_agreement: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="Least share of tokens after which engine and reference like the same token"
        " best; none: by quantization.",
    )


class Recipe(Part):
    """One build, from a Hugging Face checkpoint to a Triton repository."""

    model: Path = Field(
        strict=False,
        description="Directory of the Hugging Face checkpoint; relative to the recipe's file.",
    )
    dtype: Literal["float32", "float16", "bfloat16"] | None = Field(
        default=None, description="Type of unquantized weights; none: the checkpoint's own."
    )
    quantization: QuantizationRecipe = Field(
        default=QuantizationRecipe(), description="How weights and KV cache are stored."
    )
    mapping: MappingRecipe = Field(
        default=MappingRecipe(), description="How the model is split over ranks."
    )
    target: TargetRecipe = Field(default=CpuTarget(), description="What the engine runs on.")
    build: BuildRecipe = Field(
        default=BuildRecipe(), description="Limits compiled into the engine."
    )
    gate: GateRecipe = Field(default=GateRecipe(), description="How good the engine must be.")
    serve: ServeRecipe = Field(
        default=ServeRecipe(), description="What the Triton repository is told."
    )
