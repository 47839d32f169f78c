"""Whether this machine can run the engines of a repository's tensorrtllm models, before it starts.

An engine is bound to the TensorRT that built it and to one kind of GPU. What does not fit costs
minutes of loading and an error of the deserializer; here it is one line each, with the container
that fits. Nothing is imported: versions are read of packages, of the container and of nvidia-smi.

Source: triton-inference-server/server user guide, compatibility matrix of trtllm-python-py3, and
its containers' variable NVIDIA_TRITON_SERVER_VERSION (qa/common of that repository).
"""

import importlib.metadata
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmc.engine_stamp import read_stamp
from llmc.errors import ServeError
from llmc.model_repo.engine_config import Engine
from llmc.model_repo.lint_engine import find_engine
from llmc.model_repo.pbtxt import CONFIG_FILE, read_config
from llmc.nvidia import HostGpu, find_gpus
from llmc.tensorrt_llm_versions import TRITON_RELEASES, VERSIONS, installed_version, line_of

log = logging.getLogger(__name__)

BACKEND = "tensorrtllm"
CONTAINER_VARIABLE = "NVIDIA_TRITON_SERVER_VERSION"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What this machine has. `tensorrt_llm` None: nothing says; `told_by` is what did."""

    tensorrt_llm: str | None
    told_by: str
    tensorrt: str | None
    gpus: tuple[HostGpu, ...]


def require_fitting(repository: Path) -> None:
    """Compare every tensorrtllm model's engine with this machine; warn of what may do.

    Raises: ServeError with every reason why one cannot be loaded, and the container that fits.
    """
    engines = list(_engines(repository))
    if not engines:
        return
    found = look_around()
    reasons = [reason for engine in engines for reason in mismatches(engine, found)]
    if reasons:
        lines = [f"{repository}: its engines cannot be loaded here", *dict.fromkeys(reasons)]
        raise ServeError("\n  - ".join(lines), hint=container_hint(engines[0].version_text))
    for engine in engines:
        for doubt in doubts(engine, found):
            log.warning("%s", doubt)


def look_around() -> Found:
    """Return what this machine has, by llmc's own Python or else by the container's release."""
    installed, told_by = installed_version(), "the one installed"
    release = os.environ.get(CONTAINER_VARIABLE)
    if installed is None and release is not None:
        installed, told_by = (
            TRITON_RELEASES.get(release),
            f"the one of Triton's container {release}",
        )
    return Found(
        tensorrt_llm=installed,
        told_by=told_by,
        tensorrt=_package_version("tensorrt"),
        gpus=find_gpus(),
    )


def mismatches(engine: Engine, found: Found) -> list[str]:
    """Return why `engine` cannot be loaded here."""
    name, version, stamp = engine.directory.name, engine.version_text, read_stamp(engine.directory)
    reasons = []
    if found.tensorrt_llm is not None and line_of(found.tensorrt_llm) != line_of(version):
        reasons.append(
            f"{name}: built by TensorRT-LLM {version}, {found.told_by} is {found.tensorrt_llm}"
        )
    elif found.tensorrt is not None and stamp.get("tensorrt", found.tensorrt) != found.tensorrt:
        reasons.append(
            f"{name}: built by TensorRT {stamp['tensorrt']}, installed is {found.tensorrt}"
        )
    if not found.gpus:
        reasons.append("no GPU: nvidia-smi lists none")
    capability = stamp.get("compute_capability")
    for gpu in dict.fromkeys(found.gpus):
        if None not in (capability, gpu.capability) and gpu.capability != capability:
            reasons.append(
                f"{name}: built for compute capability {capability}, {gpu.name} has"
                f" {gpu.capability}"
            )
    return reasons


def doubts(engine: Engine, found: Found) -> list[str]:
    """Return what does not fit the matrix and may work all the same."""
    name, version, told = engine.directory.name, engine.version_text, []
    if found.tensorrt_llm is None:
        told.append(
            f"{name}: built by TensorRT-LLM {version}; which one is here nothing says, neither a"
            f" package nor {CONTAINER_VARIABLE}"
        )
    elif found.tensorrt_llm != version:
        told.append(
            f"{name}: built by TensorRT-LLM {version}, {found.told_by} is {found.tensorrt_llm}"
        )
    line = VERSIONS.get(line_of(version))
    wanted = line.driver if line is not None else None
    for driver in dict.fromkeys(gpu.driver for gpu in found.gpus):
        if wanted is not None and _numbers(driver) < _numbers(wanted):
            told.append(
                f"driver {driver}: TensorRT-LLM {version} is released with {wanted}; an older one"
                " needs CUDA's compatibility package, on GPUs of data centres"
            )
    return told


def container_hint(version: str) -> str:
    """Return where an engine of TensorRT-LLM `version` is served."""
    line = VERSIONS.get(line_of(version))
    if line is None or line.triton_container is None:
        return (
            f"no container of Triton is known to have TensorRT-LLM {line_of(version)}: build one"
            " with tensorrtllm_backend's Dockerfile of that release"
        )
    return f"serve it in {line.triton_container}"


def _engines(repository: Path) -> Iterator[Engine]:
    """Yield the engine of every model that TensorRT-LLM's backend runs."""
    for path in sorted(repository.glob(f"*/{CONFIG_FILE}")):
        config = read_config(path)
        if config.backend == BACKEND:
            engine, problem = find_engine(config, repository)
            if engine is None:
                raise ServeError(
                    f"{path}: {problem or 'parameters.gpt_model_path names no directory here'}"
                )
            yield engine


def _package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
