"""Builds engines on this machine, where TensorRT-LLM and the GPU are, a process for each rank.

Why a machine cannot is asked first, without importing anything; the calls are tensorrt_llm_api's.
"""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from llmc.builders.targets import BuildLimits
from llmc.builders.targets.tensorrt_llm.build_config import RankJob, rank_jobs
from llmc.builders.targets.tensorrt_llm.gpus import GPUS
from llmc.builders.targets.tensorrt_llm.tensorrt_llm_api import (
    build_rank,
    quiet_stdout,
    refit_ranks,
)
from llmc.checkpoint import Checkpoint
from llmc.engine_stamp import STAMP
from llmc.errors import BuildError, LlmcError, ToolchainError
from llmc.log import Progress
from llmc.nvidia import HostGpu, find_gpus
from llmc.recipes.tensorrt_llm import TensorrtLlmTarget
from llmc.tensorrt_llm_versions import installed_version, line_of

HOPPER = 90
"""The compute capability of a recipe that names none, where no GPU answers for it."""

TIMING_CACHE = "timing.cache"
"""Beside the engine, unless the recipe names another: later builds of the directory read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """This machine: the TensorRT-LLM it has, if any, and its GPUs."""

    version: str | None
    gpus: tuple[HostGpu, ...]


@cache
def find_host() -> Host:
    """Return what this machine has."""
    return Host(version=installed_version(), gpus=find_gpus())


def named_capability(options: TensorrtLlmTarget) -> int | None:
    """Return the compute capability that the recipe names, by itself or by its GPU."""
    gpu = GPUS.get(options.gpu or "")
    return options.compute_capability or (gpu.capability if gpu is not None else None)


def capability_of(options: TensorrtLlmTarget) -> int:
    """Return what is built for: what the recipe names, else the GPU of a machine that builds."""
    host, named = find_host(), named_capability(options)
    here = host.gpus[0].capability if host.version and host.gpus else None
    return named or here or HOPPER


def obstacles(options: TensorrtLlmTarget) -> list[str]:
    """Return why this machine cannot build such engines; empty if it can."""
    host, wanted = find_host(), named_capability(options)
    reasons = []
    if host.version is None:
        reasons.append("TensorRT-LLM is not installed")
    elif line_of(host.version) != options.version:
        reasons.append(
            f"TensorRT-LLM {host.version} is installed, target.version is {options.version}"
        )
    if not host.gpus:
        reasons.append("no GPU: nvidia-smi lists none")
    elif len(host.gpus) < options.workers:
        reasons.append(f"{len(host.gpus)} GPUs, target.workers is {options.workers}")
    for gpu in host.gpus[: options.workers]:
        if gpu.capability != (wanted or host.gpus[0].capability):
            reasons.append(
                f"{gpu.name} has compute capability {gpu.capability}, the engine is for"
                f" {wanted or host.gpus[0].capability}"
            )
    return reasons


def require_here(options: TensorrtLlmTarget) -> None:
    """Raise ToolchainError with every reason of `obstacles`."""
    missing = obstacles(options)
    if missing:
        raise ToolchainError(
            f"the engine cannot be built here: {'; '.join(missing)}",
            hint="leave target.build at auto: the job that builds it elsewhere is written instead",
        )


def toolchain() -> dict[str, str]:
    """Return what an engine that is built here depends on beside its checkpoint and recipe."""
    host = find_host()
    if host.version is None or not host.gpus:
        return {}
    gpu = host.gpus[0]
    return {"tensorrt_llm": host.version, "gpu": f"{gpu.name}, {gpu.capability}"}


def build_engines(
    checkpoint: Checkpoint,
    output_dir: Path,
    *,
    limits: BuildLimits,
    options: TensorrtLlmTarget,
    progress: Progress,
) -> dict[str, Any]:
    """Build every rank into the existing `output_dir`; return what built it and how long it took.

    Raises: ToolchainError with all that is missing here, BuildError for what TensorRT-LLM says.
    """
    require_here(options)
    jobs = rank_jobs(
        checkpoint.config.num_rank_files,
        limits,
        options,
        checkpoint=checkpoint.directory,
        output=output_dir,
        timing_cache=Path(options.timing_cache or output_dir.parent / TIMING_CACHE),
    )
    progress.start("build engines", len(jobs), "ranks")
    seconds, versions = {}, {}
    for job, built_by, taken in _in_processes(jobs, options.workers):
        seconds[f"rank{job.rank}"] = round(taken, 1)
        versions = built_by
        progress.advance(1)
    progress.finish()
    _require(output_dir, ["config.json", *(f"rank{job.rank}.engine" for job in jobs)])
    gpu = find_host().gpus[0]
    stamp = {**versions, "gpu": gpu.name, "compute_capability": gpu.capability}
    (output_dir / STAMP).write_text(json.dumps(stamp) + "\n", encoding="utf-8")
    return {**stamp, "driver": gpu.driver, "seconds": seconds}


def refit_engines(engine_dir: Path, checkpoint_dir: Path, output_dir: Path) -> None:
    """Write the engines of `engine_dir` with the weights of a checkpoint into `output_dir`.

    Raises: ToolchainError without TensorRT-LLM or a GPU, BuildError for what TensorRT-LLM says.
    """
    host = find_host()
    if host.version is None or not host.gpus:
        lacking = "TensorRT-LLM is not installed" if host.version is None else "there is no GPU"
        raise ToolchainError(
            f"{engine_dir}: cannot be refitted here: {lacking}",
            hint="run in TensorRT-LLM's container on the GPU the engine is for",
        )
    names = [path.name for path in sorted(engine_dir.glob("rank*.engine"))]
    paths = [str(path.resolve()) for path in (engine_dir, checkpoint_dir, output_dir)]
    with _pool(1) as pool:
        _result(pool.submit(_told, refit_ranks, *paths), str(engine_dir))
    _require(output_dir, ["config.json", *names])


def _in_processes(
    jobs: list[RankJob], workers: int
) -> Iterator[tuple[RankJob, dict[str, str], float]]:
    """Build `workers` ranks at a time; yield each as it ends, with versions and seconds so far."""
    started = time.monotonic()
    with _pool(workers) as pool:
        futures = {pool.submit(_told, build_rank, job): job for job in jobs}
        for future in as_completed(futures):
            job = futures[future]
            yield job, _result(future, f"rank {job.rank}"), time.monotonic() - started


def _pool(workers: int) -> ProcessPoolExecutor:
    # A process for one rank alone: what it took of the GPU it gives back.
    return ProcessPoolExecutor(
        workers,
        mp_context=get_context("spawn"),
        initializer=quiet_stdout,
        max_tasks_per_child=1,
    )


def _told(work: Callable[..., Any], *args: object) -> Any:
    """Run `work` in this process; what TensorRT-LLM raises crosses to the parent as text."""
    try:
        return work(*args)
    except LlmcError:
        raise
    except Exception as error:
        raise BuildError(f"TensorRT-LLM: {type(error).__name__}: {error}") from error


def _result(future: "Future[Any]", what: str) -> Any:
    try:
        return future.result()
    except BuildError as error:
        raise BuildError(f"{what}: {error.message}", error.hint) from error
    except BrokenProcessPool as error:
        raise BuildError(
            f"{what}: the process died; its last words are above",
            hint="out of memory? dmesg says so; fewer target.workers take less of it",
        ) from error


def _require(output_dir: Path, names: list[str]) -> None:
    missing = [name for name in names if not (output_dir / name).is_file()]
    if missing:
        raise BuildError(f"{output_dir.name}: TensorRT-LLM wrote no {', '.join(missing)}")
