"""Write a Triton model repository for an engine directory; serving it is server.py's part."""

from pathlib import Path

from llmc.model_repo.options import RepositoryOptions


def emit_repository(engine_dir: Path, output: Path, options: RepositoryOptions) -> None:
    """Write the five models into the existing directory `output`, parsed back and linted.

    `output` may be a staging sibling of the final directory: the engine and tokenizer are stored relative
    to the repository, so the tree that holds both can be renamed and moved.

    Raises: CheckpointError when `engine_dir` is no engine directory, BuildError when lint finds a mistake.
    """
    raise AssertionError("being written")
