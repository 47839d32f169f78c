"""Write a Triton model repository for an engine directory; serving it is server.py's part."""

import os
import shutil
from pathlib import Path

from llmc.errors import UnsupportedError
from llmc.model_repo import MODELS
from llmc.model_repo.configs import CONFIGS, read_engine_facts
from llmc.model_repo.lint import lint_repository
from llmc.model_repo.options import RepositoryOptions
from llmc.model_repo.pbtxt import CONFIG_FILE, write_config
from llmc.model_repo.specs import ModelSpec

MODEL_FILES = Path(__file__).parent / "models"
"""`<model>/1/model.py` of every model that runs code, as Triton lays them out."""


def emit_repository(engine_dir: Path, output: Path, options: RepositoryOptions) -> None:
    """Write the five models into the existing directory `output`, parsed back and linted.

    `output` may be a staging sibling of the final directory: the engine and tokenizer are stored
    relative to the repository, so the tree that holds both can be renamed and moved.

    Raises: CheckpointError when `engine_dir` is no engine directory, UnsupportedError when the
    options do not fit the engine, BuildError when lint finds a mistake.
    """
    path = os.path.relpath(engine_dir.resolve(), output.resolve())
    engine = read_engine_facts(engine_dir, path)
    if options.max_batch_size is not None and options.max_batch_size > engine.max_batch_size:
        raise UnsupportedError(
            f"max_batch_size: {options.max_batch_size} is more than the engine's"
            f" {engine.max_batch_size}",
            hint="build the engine with a larger build.max_batch_size",
        )
    if options.decoupled and options.postprocessing_instance_count > 1:
        raise UnsupportedError(
            f"postprocessing_instance_count: {options.postprocessing_instance_count} with decoupled"
            " true: instances would overtake each other and scramble streamed text, expected 1"
        )
    specs = [config(options, engine) for config in CONFIGS]
    assert tuple(spec.name for spec in specs) == MODELS
    for spec in specs:
        _write_model(spec, output / spec.name)
    lint_repository(output)


def _write_model(spec: ModelSpec, directory: Path) -> None:
    """Write config.pbtxt and the version folder; an ensemble's has a file only to survive git."""
    version = directory / "1"
    version.mkdir(parents=True)
    if spec.steps:
        (version / ".keep").touch()
    else:
        shutil.copyfile(MODEL_FILES / spec.name / "1" / "model.py", version / "model.py")
    write_config(spec, directory / CONFIG_FILE)
