import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmc.errors import CheckpointError, UnsupportedError
from llmc.runtime import engine as engine_module
from llmc.runtime.engine import (
    KvCacheConfig,
    NotRunnableHereError,
    check_engine,
    engine_target,
    load_engine,
    require_machine,
)
from tests.runtime.paged_engine import LIMITS, PagedEngine


def write(directory: Path, config: Any) -> Path:
    text = config if isinstance(config, str) else json.dumps(config)
    (directory / "config.json").write_text(text)
    return directory


def test_the_engine_module_of_the_target_loads_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def load_module(table: Any, name: str, *, package: str, kind: str) -> Any:
        def load(directory: Path, **options: Any) -> PagedEngine:
            asked.update(directory=directory, **options)
            return PagedEngine()

        asked.update(name=name, package=package)
        return SimpleNamespace(load=load)

    monkeypatch.setattr(engine_module, "load", load_module)
    write(tmp_path, {"llmc": {"target": "cpu"}})
    kv = KvCacheConfig(max_tokens=100)
    assert load_engine(tmp_path, rank=1, kv=kv).limits == LIMITS
    assert asked == {
        "name": "cpu",
        "package": "llmc.runtime.engines",
        "directory": tmp_path,
        "rank": 1,
        "kv": kv,
        "comm": None,
        "threads": None,
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "config.json: Expecting property name"),
        ([1], "config.json: list, expected a JSON object"),
        ({}, "llmc.target is None, expected one of cpu"),
        ({"llmc": "cpu"}, "llmc.target is None"),
        ({"llmc": {"target": 3}}, "llmc.target is 3"),
    ],
)
def test_a_broken_config_is_named(tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        engine_target(write(tmp_path, config))
    assert message in caught.value.message and str(tmp_path) in caught.value.message


def test_a_directory_that_is_no_engine(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not found; expected an engine directory"):
        engine_target(tmp_path / "nowhere")


def test_an_unknown_target_lists_the_known(tmp_path: Path) -> None:
    write(tmp_path, {"llmc": {"target": "cpuu"}})
    with pytest.raises(UnsupportedError, match="unknown target 'cpuu'; known: .*cpu") as caught:
        load_engine(tmp_path, kv=KvCacheConfig())
    assert caught.value.hint == "did you mean 'cpu'?"


def test_engines_of_tensorrt_llm_are_its_own_backends(tmp_path: Path) -> None:
    write(tmp_path, {"version": "1.2.1", "pretrained_config": {}, "build_config": {}})
    assert engine_target(tmp_path) == "tensorrt-llm"
    for ask in (
        lambda: load_engine(tmp_path, kv=KvCacheConfig()),
        lambda: check_engine(tmp_path, 0),
        lambda: require_machine(tmp_path),
    ):
        with pytest.raises(NotRunnableHereError, match="an engine of TensorRT-LLM") as caught:
            ask()
        assert "tensorrtllm" in caught.value.hint


def test_blocks_per_sequence_are_rounded_up() -> None:
    assert LIMITS.max_blocks_per_sequence == 24
    assert PagedEngine(max_seq_len=97).limits.max_blocks_per_sequence == 25
