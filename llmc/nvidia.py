"""The NVIDIA GPUs of this machine, as nvidia-smi lists them. No CUDA library is loaded."""

import logging
import subprocess
from dataclasses import dataclass

log = logging.getLogger(__name__)

_FIELDS = "name,compute_cap,memory.total,driver_version"
_TIMEOUT_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGpu:
    """One GPU. `capability` as 89; None for what the driver does not say."""

    name: str
    capability: int | None
    memory_gib: float | None
    driver: str


def find_gpus() -> tuple[HostGpu, ...]:
    """Return this machine's GPUs in nvidia-smi's order; none without a driver."""
    command = ["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True
        )
    except FileNotFoundError:
        return ()
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("nvidia-smi: %s", error)
        return ()
    return tuple(map(_parse, filter(None, done.stdout.splitlines())))


def _parse(line: str) -> HostGpu:
    """Read one line; a field that a GPU does not have is in brackets, as [N/A]."""
    name, capability, memory, driver = (part.strip() for part in line.rsplit(",", 3))
    return HostGpu(
        name=name,
        capability=None if "[" in capability else int(capability.replace(".", "")),
        memory_gib=None if "[" in memory else int(memory) / 1024,
        driver=driver,
    )
