"""Engines of TensorRT-LLM: its own backend runs them, llmc's runtime does not, and says so."""

from pathlib import Path
from typing import NoReturn

from llmc.runtime.engine import NotRunnableHereError


def check(engine_dir: Path, rank: int) -> NoReturn:
    """Refuse to look at a rank's engine."""
    _refuse(engine_dir)


def lacking(engine_dir: Path) -> NoReturn:
    """Refuse, as no machine lets llmc's runtime run such an engine."""
    _refuse(engine_dir)


def load(
    engine_dir: Path, *, rank: int, kv: object, comm: object | None, threads: int | None
) -> NoReturn:
    """Refuse to load."""
    _refuse(engine_dir)


def _refuse(engine_dir: Path) -> NoReturn:
    raise NotRunnableHereError(
        f"{engine_dir}: an engine of TensorRT-LLM, which its own backend runs and llmc's does not",
        hint="serve it from a repository whose backend is tensorrtllm, in TensorRT-LLM's container",
    )
