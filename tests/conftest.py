"""Fixtures shared by rooms: one engine and one server for everything that needs a real one."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.model_repo.served import Served


@pytest.fixture(scope="session")
def served_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with `engine` and `model_repo` of a tiny random llama."""
    from tests.model_repo.served import build_engine, emit

    output = tmp_path_factory.mktemp("served") / "out"
    build_engine(output)
    emit(output)
    return output


@pytest.fixture(scope="session")
def served(
    served_output: Path, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[Served]":
    """A real tritonserver serving `served_output`."""
    from tests.model_repo.served import serve

    with serve(served_output, tmp_path_factory.mktemp("cache")) as server:
        yield server
