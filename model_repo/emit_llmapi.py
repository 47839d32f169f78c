"""Write the repository of a Hugging Face checkpoint that TensorRT-LLM 1.3 or later serves."""

import json
import shutil
from pathlib import Path

from llmc.errors import CheckpointError
from llmc.model_repo import llmapi
from llmc.model_repo.emit import MODEL_FILES
from llmc.model_repo.lint import lint_repository
from llmc.model_repo.lint_llmapi import SETTINGS_FILE
from llmc.model_repo.options import RepositoryOptions
from llmc.model_repo.pbtxt import CONFIG_FILE, write_config


def is_checkpoint(directory: Path) -> bool:
    """Say whether `directory` has a Hugging Face config.json; an engine's has none of its keys."""
    try:
        found = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "architectures" in found


def emit_llmapi_repository(
    checkpoint_dir: Path,
    output: Path,
    options: RepositoryOptions,
    parallelism: llmapi.Parallelism,
    *,
    tokenizer_dir: Path | None = None,
) -> None:
    """Write the one model into the existing directory `output`, parsed back and linted.

    The checkpoint is stored as an absolute path, unless the options say where the server finds it:
    the LLM API resolves others against the server's working directory.

    Raises: CheckpointError when there is no tokenizer, UnsupportedError for options that only
    engines have, BuildError when lint finds a mistake.
    """
    if not (tokenizer_dir or checkpoint_dir).joinpath("tokenizer_config.json").is_file():
        raise CheckpointError(
            f"{tokenizer_dir or checkpoint_dir}: no tokenizer_config.json",
            hint="--tokenizer names a directory that has it",
        )
    model = options.engine_dir or str(checkpoint_dir.resolve())
    found = llmapi.settings(model, options, parallelism)
    if tokenizer_dir is not None:
        found.setdefault("tokenizer", str(tokenizer_dir.resolve()))
    spec = llmapi.config(options)
    version = output / spec.name / "1"
    version.mkdir(parents=True)
    shutil.copyfile(MODEL_FILES / "llmapi" / "1" / "model.py", version / "model.py")
    llmapi.write_settings(found, version / SETTINGS_FILE)
    write_config(spec, output / spec.name / CONFIG_FILE)
    lint_repository(output, elsewhere=options.engine_dir is not None)
