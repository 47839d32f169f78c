"""Fixtures shared by rooms: the real model, one tiny engine and one server for all who need one."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.model_repo.served import Served


SMOLLM2 = Path(__file__).parent.parent / "demo" / "smollm2"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Directory of SmolLM2-135M-Instruct as Hugging Face has it; the Makefile fetches it."""
    if not (SMOLLM2 / "config.json").is_file():
        pytest.skip("no demo/smollm2: make demo/smollm2/config.json")
    return SMOLLM2


@pytest.fixture(scope="session")
def served_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with `engine` and `model_repo` of a tiny random llama."""
    from tests.model_repo.served import build_engine, emit

    output = tmp_path_factory.mktemp("served") / "out"
    build_engine(output)
    emit(output)
    return output


@pytest.fixture(scope="session")
def served(served_output: Path, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Served]":
    """A real tritonserver serving `served_output`."""
    from tests.model_repo.served import serve

    with serve(served_output, tmp_path_factory.mktemp("cache")) as server:
        yield server
