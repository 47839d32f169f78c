"""What the target `tensorrt-llm` refuses, and what it hands over to the machine that has the GPU.

An engine is bound to the GPU it was built on: where there is none its build is a job of its own,
and everything that would fail there is said before it is made.
"""

import logging
import shlex
from pathlib import Path
from typing import Any

from llmc import artifacts
from llmc.builders.families import FAMILIES
from llmc.builders.families.family import load_family
from llmc.builders.hf.config import HF_CONFIG_NAME
from llmc.builders.targets import BuildLimits
from llmc.builders.targets.tensorrt_llm.checkpoint_fields import parse
from llmc.builders.targets.tensorrt_llm.checks import Question, algos_of, check_reasons
from llmc.builders.targets.tensorrt_llm.command import build_command
from llmc.builders.targets.tensorrt_llm.gpus import GPUS
from llmc.builders.targets.tensorrt_llm.jobs import Job, job_files
from llmc.builders.targets.tensorrt_llm.local_build import (
    build_engines,
    capability_of,
    obstacles,
    require_here,
)
from llmc.builders.targets.tensorrt_llm.memory import memory_reasons
from llmc.builders.targets.tensorrt_llm.pytorch_dialect import is_pytorch, pytorch_reasons
from llmc.builders.targets.tensorrt_llm.pytorch_export import export
from llmc.builders.targets.tensorrt_llm.quantizations import quantization_reasons
from llmc.checkpoint import Checkpoint, CheckpointConfig
from llmc.log import Progress
from llmc.recipes.tensorrt_llm import TensorrtLlmTarget
from llmc.tensorrt_llm_versions import VERSIONS

log = logging.getLogger(__name__)

_NOT_TOKENIZER = ("config.json", "quant_cfg.json", HF_CONFIG_NAME)


def unsupported(
    config: CheckpointConfig, limits: BuildLimits, options: TensorrtLlmTarget
) -> list[str]:
    """Return every reason why this version on this GPU cannot build such a checkpoint."""
    reasons = []
    if options.gpu is not None and options.gpu not in GPUS:
        reasons.append(f"target.gpu: {options.gpu!r}, expected one of {', '.join(GPUS)}")
    elif options.gpu is not None and options.compute_capability not in (
        None,
        GPUS[options.gpu].capability,
    ):
        reasons.append(
            f"target.compute_capability: {options.compute_capability}, that of target.gpu"
            f" {options.gpu} is {GPUS[options.gpu].capability}"
        )
    capability, memory_gib = capability_of(options), _memory_gib(options)
    if memory_gib is not None:
        reasons += memory_reasons(config, limits, memory_gib)
    elif options.gpu is not None:
        log.info(
            "target.gpu: no source says the memory of %s, the model is not held against it;"
            " target.gpu_memory_gib would be",
            options.gpu,
        )
    if is_pytorch(options):
        return reasons + pytorch_reasons(config, options, capability)
    reasons += _version_reasons(config, options)
    algos, kv_algo = algos_of(config), config.quantization.kv_cache_quant_algo
    reasons += quantization_reasons(algos, kv_algo, options.version, capability)
    reasons += _layout_reasons(config, options)
    reasons += check_reasons(
        Question(config=config, limits=limits, target=options, capability=capability)
    )
    return list(dict.fromkeys(reasons))


def check_host(options: TensorrtLlmTarget) -> None:
    """Raise ToolchainError where an engine is to be built here and cannot be."""
    if options.build == "here" and not is_pytorch(options):
        require_here(options)


def hands_over(options: TensorrtLlmTarget) -> bool:
    """Say whether the engine is built elsewhere, by the job that `hand_over` writes."""
    if is_pytorch(options):
        return False
    if options.build != "auto":
        return options.build == "job"
    missing = obstacles(options)
    if missing:
        log.info("the engine is not built here: %s", "; ".join(missing))
    return bool(missing)


def splits_checkpoint(options: TensorrtLlmTarget) -> bool:
    """Say whether the checkpoint has a part for each rank; the PyTorch backend splits it itself."""
    return not is_pytorch(options)


def build(
    source: Checkpoint,
    output_dir: Path,
    *,
    limits: BuildLimits,
    options: TensorrtLlmTarget,
    progress: Progress,
) -> dict[str, Any] | None:
    """Write what TensorRT-LLM serves into the existing directory `output_dir`.

    That is the engine of every rank, or from 1.3 on a Hugging Face checkpoint.
    """
    if is_pytorch(options):
        export(source, output_dir, progress)
        return None
    return build_engines(source, output_dir, limits=limits, options=options, progress=progress)


def hand_over(
    checkpoint: Checkpoint, output_dir: Path, *, limits: BuildLimits, options: TensorrtLlmTarget
) -> None:
    """Write the job that builds the engine into the existing directory `output_dir`."""
    version = VERSIONS[options.version]
    files = artifacts.read_manifest(checkpoint.directory).files
    command = build_command(limits, options, "CHECKPOINT", "ENGINE")
    job = Job(
        version=version,
        capability=capability_of(options),
        workers=options.workers,
        command=command,
        digests={name: entry.sha256 for name, entry in files.items()},
        tokenizer_files=[
            name
            for name in sorted(files)
            if name not in _NOT_TOKENIZER and not name.endswith(".safetensors")
        ],
    )
    for name, text in job_files(job).items():
        (output_dir / name).write_text(text, encoding="utf-8")
    (output_dir / "build.sh").chmod(0o755)
    log.info("the engine is built in %s:", version.container)
    log.info("%s", shlex.join(command))


def _memory_gib(options: TensorrtLlmTarget) -> float | None:
    gpu = GPUS.get(options.gpu or "")
    return options.gpu_memory_gib or (gpu.memory_gib if gpu is not None else None)


def _version_reasons(config: CheckpointConfig, options: TensorrtLlmTarget) -> list[str]:
    version, architecture = VERSIONS[options.version], config.arch.architecture
    if architecture in FAMILIES:
        since = load_family(architecture).tensorrt_llm
        if since is None:
            return [f"{architecture}: no version of TensorRT-LLM with engines has it"]
        if _number(since) > _number(version.line):
            return [
                f"target.version: {version.line} does not have {architecture}; it came with {since}"
            ]
    return list(parse(config.to_json(), version.line).problems)


def _layout_reasons(config: CheckpointConfig, options: TensorrtLlmTarget) -> list[str]:
    """Return why packed weights are not what the kernels of this version read on this GPU."""
    if config.layout is None:
        return []
    hopper = "sm90-1.x" if _number(options.version) >= (1, 0) else "sm90"
    wanted = hopper if capability_of(options) == 90 else "sm80"
    if config.layout == wanted:
        return []
    return [
        f"quantization.layout: {config.layout}, compute capability {capability_of(options)} of"
        f" TensorRT-LLM {options.version} reads {wanted}"
    ]


def _number(line: str) -> tuple[int, ...]:
    return tuple(int(part) for part in line.split("."))
