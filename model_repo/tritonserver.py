"""Find a tritonserver binary and say how it must be started; starting it is server.py's part.

A server of a flag or of PATH brings its own backends. The one inside the nvidia-pytriton wheel
does not quite: its libraries lie in a folder of their own, and the stub of the running Python has
to lie beside the backend's library. site-packages is never written: the links are made in a
private folder.
"""

import hashlib
import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import llmc
from llmc.errors import ToolchainError

PIP_COMMAND = "pip install 'llmc[triton]'"
BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")
STUB = "triton_python_backend_stub"


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonServer:
    """A server that can be started. `backend_dir` None means the one compiled into the binary."""

    binary: Path
    source: str
    backend_dir: Path | None
    library_dirs: tuple[Path, ...]

    def environment(self) -> dict[str, str]:
        """Return the environment of the server and, through it, of every Python model's process.

        The stub embeds Python and finds its home as any `python3` does: by the first one on PATH
        and the pyvenv.cfg beside it. It runs isolated: PYTHONPATH has no say.
        """
        environment = dict(os.environ)
        _prepend(environment, "PATH", (Path(sys.executable).parent,))
        _prepend(environment, "LD_LIBRARY_PATH", self.library_dirs)
        return environment


def find_tritonserver(explicit: Path | None, *, cache: Path) -> TritonServer:
    """Return the server of the flag, else of PATH, else of the nvidia-pytriton wheel.

    `cache` is llmc's cache folder; links to the wheel's files are kept in it.

    Raises: ToolchainError when there is none, or when the wheel has no stub for the running
    Python.
    """
    if explicit is not None:
        if not (explicit.is_file() and os.access(explicit, os.X_OK)):
            raise ToolchainError(f"--tritonserver: {explicit} is no executable file")
        return _server(explicit.resolve(), "--tritonserver", cache)
    on_path = shutil.which("tritonserver")
    if on_path is not None:
        return _server(Path(on_path).resolve(), "PATH", cache)
    spec = importlib.util.find_spec("pytriton")
    if spec is not None and spec.origin is not None:
        binary = Path(spec.origin).parent / "tritonserver" / "bin" / "tritonserver"
        if binary.is_file():
            return _server(binary, "nvidia-pytriton wheel", cache)
    raise ToolchainError(
        "no tritonserver: not on PATH, and the nvidia-pytriton wheel is not installed",
        hint=f"{PIP_COMMAND}, or name a binary with --tritonserver",
    )


def _server(binary: Path, source: str, cache: Path) -> TritonServer:
    root = binary.parent.parent
    stubs = root / "python_backend_stubs"
    if not stubs.is_dir():
        return TritonServer(binary=binary, source=source, backend_dir=None, library_dirs=())
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = stubs / version / STUB
    if not stub.is_file():
        known = sorted(path.name for path in stubs.iterdir())
        raise ToolchainError(
            f"{stubs}: no stub for Python {version}, only for {', '.join(known)}",
            hint="run llmc under one of those Pythons",
        )
    libraries = root.parent.parent / "nvidia_pytriton.libs"
    if not libraries.is_dir():
        raise ToolchainError(f"{libraries}: missing, the wheel is not whole", hint=PIP_COMMAND)
    backend = {name: root / "backends" / "python" / name for name in BACKEND_FILES}
    # The backend's folder is on the models' module path, so a clone need not be installed.
    backend |= {STUB: stub, "llmc": Path(llmc.__file__).parent}
    python_library = find_libpython()
    key = hashlib.sha256(f"{root}\n{version}\n{backend['llmc']}".encode()).hexdigest()[:16]
    private = cache / "triton" / key
    _link(private / "backends" / "python", backend)
    _link(private / "lib", {python_library.name: python_library})
    return TritonServer(
        binary=binary,
        source=source,
        backend_dir=private / "backends",
        library_dirs=(libraries, private / "lib"),
    )


def find_libpython() -> Path:
    """Return the shared library of the running Python's version, which the stub loads.

    The interpreter may be linked statically (Debian's, some pyenv builds); then any library of
    the same minor version serves, since the standard library is found through PATH.
    """
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    for folder in _library_folders():
        if (folder / name).is_file():
            return (folder / name).resolve()
    raise ToolchainError(
        f"{name}: not found, and Triton's Python backend needs it",
        hint="use a Python built with --enable-shared, or install the system's libpython package",
    )


def _library_folders() -> Iterator[Path]:
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    for variable in ("LIBDIR", "LIBPL"):
        value = sysconfig.get_config_var(variable)
        if value:
            yield Path(value)
    for prefix in (sys.base_prefix, "/usr/local", "/usr", "/"):
        for folder in ("lib", "lib64", f"lib/{multiarch}"):
            yield Path(prefix) / folder


def _link(folder: Path, targets: dict[str, Path]) -> None:
    """Make `folder` hold a link per target; several processes may do so at once."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, target in targets.items():
        link = folder / name
        if link.is_symlink() and link.readlink() == target:
            continue
        fresh = folder / f"{name}.tmp-{os.getpid()}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        fresh.replace(link)


def _prepend(environment: dict[str, str], name: str, folders: tuple[Path, ...]) -> None:
    parts = [str(folder) for folder in folders] + [environment.get(name, "")]
    environment[name] = os.pathsep.join(part for part in parts if part)
