"""The target `tensorrt`: plans of TensorRT, built on the GPU they are for.

The lowering is that of tensorrt-rtx. TensorRT has no placeholders for weights, so plans have
theirs; what its plans launch cannot be read, so they prove nothing.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from llmc.builders.targets import BuildLimits
from llmc.builders.targets import tensorrt_capabilities as known
from llmc.builders.targets.tensorrt_directory import Choices, build_plans, network_reasons
from llmc.builders.targets.tensorrt_module import gpu_capability, import_tensorrt, missing
from llmc.builders.targets.tensorrt_network import Weights
from llmc.checkpoint import Checkpoint, CheckpointConfig
from llmc.errors import ToolchainError, UnsupportedError
from llmc.log import Progress
from llmc.recipes.schema import TensorrtTarget

Found = TypeVar("Found")


def unsupported(
    config: CheckpointConfig, limits: BuildLimits, options: TensorrtTarget
) -> list[str]:
    """Return every reason this target cannot build such a checkpoint within such limits.

    What this machine's GPU and TensorRT do not have is among them where they are there at all.
    """
    fp8_with = None if options.allow_emulated else _weights
    reasons = list(network_reasons(config, limits, "tensorrt", fp8_with=fp8_with))
    capability: int | None = options.compute_capability or _or_none(gpu_capability)
    if capability is not None:
        reasons += known.quantization_reasons(
            config,
            capability,
            str(capability),
            known.REFUSED_BY_TENSORRT,
            known.EMULATED_BY_TENSORRT,
            allow_emulated=options.allow_emulated,
        )
    trt = _or_none(import_tensorrt)
    if trt is not None:
        reasons += missing(trt, config)
    return list(dict.fromkeys(reasons))


def check_host(options: TensorrtTarget) -> None:
    """Raise ToolchainError unless this machine has TensorRT, and the GPU that is built for."""
    import_tensorrt()
    found = gpu_capability()
    if options.compute_capability not in (None, found):
        raise ToolchainError(
            f"target.compute_capability: {options.compute_capability}, this machine's GPU has"
            f" {found}, and TensorRT builds for the GPU it runs on",
            hint="build on a host with that GPU",
        )


def toolchain() -> dict[str, str]:
    """Return what a plan that is built here depends on beside its checkpoint and recipe."""
    trt, capability = _or_none(import_tensorrt), _or_none(gpu_capability)
    return {} if trt is None else {"tensorrt": trt.__version__, "gpu": str(capability)}


def build(
    source: Checkpoint,
    output_dir: Path,
    *,
    limits: BuildLimits,
    options: TensorrtTarget,
    progress: Progress,
) -> dict[str, Any]:
    """Write config.json and every plan into `output_dir` (tensorrt_directory.build_plans).

    Raises: ToolchainError, UnsupportedError with all reasons of `unsupported`; BuildError.
    """
    check_host(options)
    reasons = unsupported(source.config, limits, options)
    if reasons:
        raise UnsupportedError("not for the tensorrt target", reasons)
    choices = Choices(
        target="tensorrt",
        groups=((gpu_capability(),),),
        weights="embed",
        allow_emulated=options.allow_emulated,
        is_readable=False,
    )
    return build_plans(source, output_dir, limits=limits, choices=choices, progress=progress)


def _weights() -> Weights:
    return "embed"


def _or_none(find: Callable[[], Found]) -> Found | None:
    try:
        return find()
    except ToolchainError:
        return None
