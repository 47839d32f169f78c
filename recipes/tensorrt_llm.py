"""The recipe's variant for the target `tensorrt-llm`: which version, on which GPU."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt

from llmc.recipes.part import Part


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
