"""What is looked at before ranks are started, as data."""

from pathlib import Path

import pytest

from llmc.errors import ServeError
from llmc.mapping import Mapping
from llmc.model_repo.ranks import RankedModel, choose_leader, require_ready


def model(
    engine_dir: Path, *, tp: int = 2, target: str = "cpu", mode: str = "leader"
) -> RankedModel:
    for rank in range(tp):
        (engine_dir / f"rank{rank}.engine").touch()
    return RankedModel(
        model="tensorrt_llm",
        engine_dir=engine_dir,
        mapping=Mapping(tp_size=tp),
        target=target,
        launch_mode=mode,
        timeout_seconds=30,
    )


def test_nothing_is_wrong(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=1\nb slots=1\n")
    require_ready([model(tmp_path)], hostfile=hosts, num_gpus=0, leader=True)
    require_ready([model(tmp_path, target="tensorrt")], hostfile=None, num_gpus=2, leader=True)


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    wrong = model(tmp_path, tp=12, target="tensorrt")
    (tmp_path / "rank3.engine").unlink()
    with pytest.raises(ServeError) as caught:
        require_ready([wrong], hostfile=None, num_gpus=4, leader=True)
    assert "rank3.engine is missing, the mapping has 12 ranks" in caught.value.message
    assert "4 GPUs here, its 12 ranks need 8" in caught.value.message, "8 are on a node"
    hosts = tmp_path / "hosts"
    hosts.write_text("a:4\nb\n")
    with pytest.raises(ServeError, match="hosts has slots for 5 ranks, the engine has 12"):
        require_ready([wrong], hostfile=hosts, num_gpus=0, leader=True)


def test_a_job_has_the_ranks_of_one_model(tmp_path: Path) -> None:
    leader, started = model(tmp_path), model(tmp_path, mode="orchestrator")
    whole = model(tmp_path, tp=1)
    assert choose_leader([whole, started]) is None
    assert choose_leader([whole, started, leader]) is leader
    with pytest.raises(ServeError, match="one server job has the ranks of one model"):
        choose_leader([leader, leader])
