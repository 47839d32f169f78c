"""The backends a repository's models need, and whether the server has them.

Source: triton-inference-server/server, src/command_line_parser.cc (default of --backend-directory);
triton-inference-server/core, which looks for <directory>/<backend>.
"""

from pathlib import Path

from llmc.errors import BuildError, ToolchainError
from llmc.model_repo.lint_engine import find_engine
from llmc.model_repo.pbtxt import CONFIG_FILE, read_config
from llmc.model_repo.tritonserver import TritonServer
from llmc.model_repo.version_guard import BACKEND, container_hint

COMPILED_IN = Path("/opt/tritonserver/backends")
"""Where a server that is not told looks for its backends."""


def require_backends(repository: Path, server: TritonServer) -> None:
    """Look for every model's backend; where the server's are kept elsewhere it must say itself.

    Raises: ToolchainError that names what is missing, and the container that has it.
    """
    directory = server.backend_dir or COMPILED_IN
    if not directory.is_dir():
        return
    missing: dict[str, list[str]] = {}
    for file in sorted(repository.glob(f"*/{CONFIG_FILE}")):
        try:
            config = read_config(file)
        except BuildError:  # lint's to report
            continue
        if config.backend and not (directory / config.backend).is_dir():
            missing.setdefault(config.backend, []).append(file.parent.name)
    if missing:
        needs = "; ".join(f"{', '.join(names)} needs {what}" for what, names in missing.items())
        have = ", ".join(sorted(path.name for path in directory.iterdir())) or "none"
        raise ToolchainError(
            f"{server.binary} lacks a backend: {needs}; it has {have}",
            hint=_hint(repository) if BACKEND in missing else "",
        )


def _hint(repository: Path) -> str:
    """Return where the first engine of TensorRT-LLM that a model names is served."""
    for file in sorted(repository.glob(f"*/{CONFIG_FILE}")):
        engine, _ = find_engine(read_config(file), repository)
        if engine is not None and not engine.is_ours:
            return container_hint(engine.version_text)
    return ""
