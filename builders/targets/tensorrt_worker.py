"""A process for each plan: it may be killed, what it used is its own, and it gives all of it back.

`build_in_worker` runs in llmc, `python -m llmc.builders.targets.tensorrt_worker` is the process: a
Job as JSON on stdin, and on stdout lines of JSON: steps, then what was built or an error.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llmc.builders.targets import BuildLimits
from llmc.builders.targets.tensorrt_compile import Built, compile_plan
from llmc.builders.targets.tensorrt_network import Weights, lower_network
from llmc.builders.targets.tensorrt_toolkit import Toolkit
from llmc.checkpoint import Checkpoint, CheckpointConfig
from llmc.errors import BuildError, LlmcError


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One plan of a tensorrt target. `checkpoint` is a directory; None to build of shapes alone."""

    target: str
    config: dict[str, Any]
    checkpoint: str | None
    rank: int
    capabilities: tuple[int, ...]
    limits: dict[str, Any]
    weights: Weights
    output: str


def build_in_worker(job: Job, step: Callable[[str, int, int], None]) -> tuple[Built, list[str]]:
    """Build `job`'s plan; return what it took and what is slower in it than it might be.

    Whatever ends this call, KeyboardInterrupt included, ends the process. Raises: BuildError.
    """
    with tempfile.TemporaryFile() as noise:
        process = subprocess.Popen(
            [sys.executable, "-m", "llmc.builders.targets.tensorrt_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            text=True,
        )
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(asdict(job)))
            process.stdin.close()
            for line in process.stdout:
                message = json.loads(line)
                if "step" in message:
                    step(*message["step"])
                elif "error" in message:
                    raise BuildError(message["error"], message["hint"])
                else:
                    return Built(**message["built"]), message["notes"]
            noise.seek(0)
            tail = noise.read().decode(errors="replace").strip().splitlines()[-1:]
            raise BuildError(
                f"TensorRT died building {Path(job.output).name}, with"
                f" {_cause(process.wait())}: {''.join(tail) or 'nothing was said'}"
            )
        finally:
            process.kill()
            process.wait()


def _cause(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def main() -> None:
    """Build the job on stdin."""
    # An interrupt is the parent's to handle: it kills this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a library prints must not get between the lines.
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**message: Any) -> None:
        lines.write(json.dumps(message) + "\n")
        lines.flush()

    job = Job(**json.load(sys.stdin))
    try:
        built, notes = _build(job, lambda *step: say(step=step))
    except LlmcError as error:
        say(error=error.message, hint=error.hint)
    else:
        say(built=asdict(built), notes=notes)


def _build(job: Job, step: Callable[[str, int, int], None]) -> tuple[Built, tuple[str, ...]]:
    toolkit = Toolkit.of_target(job.target)
    config, limits = CheckpointConfig.from_json(job.config), BuildLimits(**job.limits)
    file = None
    if job.checkpoint is not None:
        checkpoint = Checkpoint.open(Path(job.checkpoint), layout=config.layout)
        config, file = checkpoint.config, checkpoint.rank(job.rank)
    lowered = lower_network(
        toolkit,
        config,
        job.rank,
        max_seq_len=limits.max_seq_len,
        weights=job.weights,
        file=file,
    )
    built = compile_plan(
        toolkit,
        lowered,
        Path(job.output),
        capabilities=tuple(job.capabilities),
        limits=limits,
        weights=job.weights,
        step=step,
    )
    return built, lowered.notes


if __name__ == "__main__":
    main()
