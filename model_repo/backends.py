"""The backends a repository's models need, and whether the server has them.

Source: triton-inference-server/server, src/command_line_parser.cc (default of --backend-directory);
triton-inference-server/core, which looks for <directory>/<backend>.
"""

from collections.abc import Mapping
from pathlib import Path

from llmc.errors import BuildError, CheckpointError, ToolchainError
from llmc.model_repo.engine_config import read_engine
from llmc.model_repo.pbtxt import CONFIG_FILE, read_config
from llmc.model_repo.tritonserver import TritonServer

COMPILED_IN = Path("/opt/tritonserver/backends")
"""Where a server that is not told looks for its backends."""


def require_backends(
    repository: Path, server: TritonServer, *, containers: Mapping[str, str]
) -> None:
    """Look for every model's backend; where the server's are kept elsewhere it must say itself.

    `containers`: line of TensorRT-LLM, such as 1.1 → the image with its backend.
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
            hint=_hint(repository, containers),
        )


def _hint(repository: Path, containers: Mapping[str, str]) -> str:
    lines = set()
    for file in repository.glob(f"*/{CONFIG_FILE}"):
        try:
            path = read_config(file).parameters["gpt_model_path"].string_value
            engine = read_engine(repository / path) if path else None
        except (BuildError, CheckpointError):
            continue
        if engine is not None and engine.version is not None:
            lines.add(".".join(map(str, engine.version)))
    images = [containers[line] for line in sorted(lines) if line in containers]
    if images:
        return f"serve it in {' or '.join(images)}"
    versions = " or ".join(sorted(lines)) or "the engine's version"
    return f"serve it where TensorRT-LLM {versions} and its Triton backend are installed"
