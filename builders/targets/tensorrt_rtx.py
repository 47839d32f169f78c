"""The target `tensorrt-rtx`: plans for GeForce and RTX GPUs, built on a machine without one."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

from llmc.builders.targets import BuildLimits
from llmc.builders.targets import tensorrt_capabilities as known
from llmc.builders.targets.tensorrt_directory import Choices, build_plans, network_reasons
from llmc.builders.targets.tensorrt_network import Weights
from llmc.builders.targets.tensorrt_rtx_module import import_tensorrt_rtx
from llmc.checkpoint import Checkpoint, CheckpointConfig, tensor_schema
from llmc.errors import ToolchainError, UnsupportedError
from llmc.log import Progress
from llmc.recipes.schema import TensorRtxTarget

log = logging.getLogger(__name__)

_GIB = 1 << 30


def needs_weights(options: TensorRtxTarget) -> bool:
    """Say whether `build` wants a Checkpoint: told to refit, it builds from shapes alone."""
    return options.weights != "refit"


def unsupported(
    config: CheckpointConfig, limits: BuildLimits, options: TensorRtxTarget
) -> list[str]:
    """Return every reason this target cannot build such a checkpoint within such limits."""
    reasons = []
    try:
        import_tensorrt_rtx()
    except ToolchainError as error:
        reasons.append(f"{error.message}; {error.hint}")
    if not options.compute_capabilities:
        reasons.append("target.compute_capabilities: none, expected at least one")
    for capabilities in known.plans_of(options.compute_capabilities):
        reasons += known.quantization_reasons(
            config,
            known.class_of(capabilities[0]),
            " and ".join(map(str, capabilities)),
            known.REFUSED,
            known.EMULATED,
            allow_emulated=options.allow_emulated,
        )
    fp8_with = None if options.allow_emulated else partial(_choose_weights, config, options)
    reasons += network_reasons(config, limits, "tensorrt-rtx", fp8_with=fp8_with)
    return list(dict.fromkeys(reasons))


def toolchain() -> dict[str, str]:
    """Return what a plan that is built here depends on beside its checkpoint and recipe."""
    return {"tensorrt_rtx": import_tensorrt_rtx().__version__}


def build(
    source: Checkpoint | CheckpointConfig,
    output_dir: Path,
    *,
    limits: BuildLimits,
    options: TensorRtxTarget,
    progress: Progress,
) -> dict[str, Any]:
    """Write config.json and every plan into `output_dir` (tensorrt_directory.build_plans).

    Raises: UnsupportedError with all reasons of `unsupported`; BuildError.
    """
    config = source.config if isinstance(source, Checkpoint) else source
    reasons = unsupported(config, limits, options)
    if reasons:
        raise UnsupportedError("not for the tensorrt-rtx target", reasons)
    weights = _choose_weights(config, options)
    if weights == "refit" and options.weights == "auto":
        log.info(
            "weights: refit, as a rank has %.1f GiB of them and target.strip_above_gib is %g: plans"
            " come without, and `llmc refit` puts them in on the GPU host",
            *(_largest_rank(config) / _GIB, options.strip_above_gib),
        )
    groups = known.plans_of(options.compute_capabilities, refit=weights == "refit")
    choices = Choices(
        target="tensorrt-rtx",
        groups=tuple(groups),
        weights=weights,
        allow_emulated=options.allow_emulated,
        is_readable=True,
    )
    return build_plans(source, output_dir, limits=limits, choices=choices, progress=progress)


def _choose_weights(config: CheckpointConfig, options: TensorRtxTarget) -> Weights:
    if options.weights != "auto":
        return options.weights
    return "refit" if _largest_rank(config) > options.strip_above_gib * _GIB else "embed"


def _largest_rank(config: CheckpointConfig) -> int:
    """Return the bytes of the weights of the rank that has most."""
    ranks = range(config.num_rank_files)
    return max(
        sum(info.num_bytes for info in tensor_schema(config, rank).values()) for rank in ranks
    )
