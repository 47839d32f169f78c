"""One plan: profiles and flags, the build, and an error with names when there is none.

Runs in a process of its own (builders/targets/tensorrt_worker.py), which may be killed.
"""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmc.builders.targets import BuildLimits
from llmc.builders.targets.tensorrt_network import LoweredNetwork, Weights
from llmc.builders.targets.tensorrt_toolkit import Toolkit
from llmc.errors import BuildError

PROFILES = ("context", "generation")
"""Optimization profiles, in the plan's order: chunks of one prompt, and one token of each slot."""

Step = Callable[[str, int, int], None]
"""Told (phase, steps done, steps in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a plan took."""

    seconds: float
    cpu_seconds: float
    peak_memory_bytes: int
    size_bytes: int


def compile_plan(
    toolkit: Toolkit,
    lowered: LoweredNetwork,
    path: Path,
    *,
    capabilities: tuple[int, ...],
    limits: BuildLimits,
    weights: Weights,
    step: Step,
) -> Built:
    """Build the plan of `lowered` for `capabilities` and write it to `path`.

    Raises: BuildError with what TensorRT logged.
    """
    trt, started, cpu_started = toolkit.trt, time.monotonic(), time.process_time()
    config = toolkit.builder.create_builder_config()
    # TensorRT itself builds for the GPU it runs on.
    if hasattr(config, "set_compute_capability"):
        config.num_compute_capabilities = len(capabilities)
        for place, capability in enumerate(capabilities):
            config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{capability}"), place)
    if weights == "refit":
        # Only together do they leave the named placeholders out of the plan.
        config.set_flag(trt.BuilderFlag.STRIP_PLAN)
        config.set_flag(trt.BuilderFlag.REFIT_INDIVIDUAL)
    config.progress_monitor = _monitor(trt, step)
    for name in PROFILES:
        config.add_optimization_profile(_profile(toolkit, lowered, profile_shapes(name, limits)))
    with path.open("wb") as file:
        ok = toolkit.builder.build_serialized_network_to_stream(
            lowered.network, config, _writer(trt, file)
        )
    if not ok:
        path.unlink()
        raise BuildError(f"TensorRT built no plan: {toolkit.last_error()}")
    return Built(
        seconds=time.monotonic() - started,
        cpu_seconds=time.process_time() - cpu_started,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        size_bytes=path.stat().st_size,
    )


def profile_shapes(name: str, limits: BuildLimits) -> tuple[dict[str, int], dict[str, int]]:
    """Return the smallest and largest lengths of the axes B, S and L in a profile."""
    chunk = min(limits.max_num_tokens, limits.max_input_len)
    largest = {"context": (1, chunk), "generation": (limits.max_batch_size, 1)}[name]
    slots, tokens = largest
    return {"B": 1, "S": 1, "L": 1}, {"B": slots, "S": tokens, "L": 1}


def _profile(
    toolkit: Toolkit, lowered: LoweredNetwork, lengths: tuple[dict[str, int], dict[str, int]]
) -> Any:
    smallest, largest = lengths
    profile = toolkit.builder.create_optimization_profile()
    for binding in lowered.bindings:
        if binding.is_input:
            low, high = (
                tuple(of[axis] if isinstance(axis, str) else axis for axis in binding.shape)
                for of in (smallest, largest)
            )
            profile.set_shape(binding.name, low, high, high)
    return profile


def _monitor(trt: Any, step: Step) -> Any:
    totals: dict[str, int] = {}

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, name: str, parent: str | None, num_steps: int) -> None:
            totals[name] = num_steps
            step(name, 0, num_steps)

        def step_complete(self, name: str, done: int) -> bool:
            step(name, done + 1, totals[name])
            return True

        def phase_finish(self, name: str) -> None:
            step(name, totals[name], totals[name])

    return Monitor()


def _writer(trt: Any, file: Any) -> Any:
    class Writer(trt.IStreamWriter):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IStreamWriter.__init__(self)

        def write(self, data: bytes) -> int:
            written: int = file.write(data)
            return written

    return Writer()
