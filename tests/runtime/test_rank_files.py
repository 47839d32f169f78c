import json
from pathlib import Path

import pytest

from llmc.errors import CheckpointError
from llmc.runtime.rank_files import describe_rank, require_one_engine
from tests.plugins.tiny_llama import TinyLlama
from tests.runtime.cpu_engines import build_engine


@pytest.fixture(scope="module")
def engine_dirs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two builds of the same shape, with other weights in the second."""
    root = tmp_path_factory.mktemp("engines")
    models = [TinyLlama.make(initializer_range=spread) for spread in (0.2, 0.1)]
    return [
        build_engine(tiny, tiny.config(tp=2), root / str(index))
        for index, tiny in enumerate(models)
    ]


def test_ranks_of_one_build_agree(engine_dirs: list[Path]) -> None:
    require_one_engine([describe_rank(engine_dirs[0], rank) for rank in (0, 1)])


def test_ranks_of_two_builds_do_not(engine_dirs: list[Path]) -> None:
    described = [describe_rank(path, rank) for rank, path in enumerate(engine_dirs)]
    with pytest.raises(CheckpointError, match=r"rank 1 on \S+ has an engine of build \w+, rank 0"):
        require_one_engine(described)


def test_a_file_of_another_build_is_found_by_its_header(
    engine_dirs: list[Path], tmp_path: Path
) -> None:
    for name in ("config.json", "rank0.engine"):
        (tmp_path / name).write_bytes((engine_dirs[0] / name).read_bytes())
    (tmp_path / "rank1.engine").write_bytes((engine_dirs[1] / "rank1.engine").read_bytes())
    described = [describe_rank(tmp_path, rank) for rank in (0, 1)]
    message = r"rank 1 on \S+: .*rank1\.engine is of another build than config\.json"
    with pytest.raises(CheckpointError, match=message):
        require_one_engine(described)


@pytest.mark.parametrize(
    ("damage", "message"),
    [("missing", "cannot be read"), ("short", "cut short"), ("swapped", "holds rank 0, expected")],
)
def test_every_rank_hears_of_a_rank_without_its_file(
    engine_dirs: list[Path], tmp_path: Path, damage: str, message: str
) -> None:
    for file in engine_dirs[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    file = tmp_path / "rank1.engine"
    if damage == "missing":
        file.unlink()
    elif damage == "short":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.write_bytes((tmp_path / "rank0.engine").read_bytes())
    described = [describe_rank(tmp_path, rank) for rank in (0, 1)]
    assert json.loads(described[0])[2] is None
    with pytest.raises(CheckpointError, match=rf"rank 1 on \S+: .*{message}"):
        require_one_engine(described)
