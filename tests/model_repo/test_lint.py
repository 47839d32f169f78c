"""Every mistake that lint knows is made once in an otherwise sound repository."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from llmc.errors import BuildError
from llmc.model_repo.emit import emit_repository
from llmc.model_repo.lint import lint_repository
from llmc.model_repo.pbtxt import read_config
from tests.model_repo.served import options


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A sound repository."""
    engine = tmp_path / "engine"
    engine.mkdir()
    config = {
        "llmc": {"target": "cpu"},
        "pretrained_config": {"logits_dtype": "float32"},
        "build_config": {"max_batch_size": 8},
    }
    (engine / "config.json").write_text(json.dumps(config))
    directory = tmp_path / "model_repo"
    directory.mkdir()
    emit_repository(engine, directory, options())
    return directory


def edit(repository: Path, model: str, change: Callable[[Any], object]) -> None:
    path = repository / model / "config.pbtxt"
    config = read_config(path)
    change(config)
    path.write_text(text_format.MessageToString(config))


def step(config: Any, index: int) -> Any:
    return config.ensemble_scheduling.step[index]


def parameter(config: Any, value: str) -> None:
    config.parameters["gpt_model_path"].string_value = value


def decouple(config: Any, value: bool) -> None:
    config.model_transaction_policy.decoupled = value


MISTAKES: list[tuple[str, Callable[[Any], object], str]] = [
    (
        "tensorrt_llm",
        lambda config: parameter(config, "${engine_dir}"),
        r"parameters.gpt_model_path: '\$\{engine_dir\}' is an unfilled placeholder",
    ),
    (
        "tensorrt_llm",
        lambda config: parameter(config, "../nowhere"),
        "parameters.gpt_model_path: '../nowhere' does not exist",
    ),
    ("tensorrt_llm", lambda config: config.ClearField("instance_group"), "instance_group: missing"),
    (
        "preprocessing",
        lambda config: config.instance_group[0].ClearField("kind"),
        "instance_group: count and kind must be given",
    ),
    (
        "tensorrt_llm_bls",
        lambda config: decouple(config, False),
        "decoupled: .*'tensorrt_llm_bls': False.*, expected the same",
    ),
    ("postprocessing", lambda config: setattr(config, "name", "post"), "name: 'post', expected"),
    (
        "preprocessing",
        lambda config: config.input.add().CopyFrom(config.input[0]),
        "input: 'QUERY' is there twice",
    ),
    (
        "ensemble",
        lambda config: setattr(step(config, 1), "model_name", "llm"),
        r"step\[1\]: model 'llm' is not here",
    ),
    (
        "ensemble",
        lambda config: step(config, 0).input_map.pop("QUERY"),
        r"step\[0\].input_map: preprocessing's required input 'QUERY' is missing",
    ),
    (
        "ensemble",
        lambda config: step(config, 0).output_map.pop("INPUT_ID"),
        r"step\[1\].input_map: 'input_ids' comes from '_INPUT_ID', which nothing makes",
    ),
    (
        "ensemble",
        lambda config: step(config, 1).input_map.update({"input_id": "_INPUT_ID"}),
        "tensorrt_llm has no input 'input_id'",
    ),
    (
        "ensemble",
        lambda config: step(config, 2).output_map.update({"TEXT": "text_output"}),
        "postprocessing has no output 'TEXT'",
    ),
    (
        "ensemble",
        lambda config: step(config, 1).input_map.update({"temperature": "top_k"}),
        r"step\[1\].input_map: 'temperature' and 'top_k' differ in type",
    ),
    (
        "ensemble",
        lambda config: step(config, 1).output_map.pop("cum_log_probs"),
        "output: no step makes 'cum_log_probs'",
    ),
    (
        "ensemble",
        lambda config: setattr(config.output[0], "data_type", config.output[1].data_type),
        "output: 'text_output' differs in type from the step that makes it",
    ),
    (
        "ensemble",
        lambda config: setattr(config, "max_batch_size", 16),
        "max_batch_size: 16, but preprocessing takes 8",
    ),
]


@pytest.mark.parametrize(("model", "change", "finding"), MISTAKES)
def test_a_mistake_is_found_with_file_and_field(
    repository: Path, model: str, change: Callable[[Any], object], finding: str
) -> None:
    lint_repository(repository)
    edit(repository, model, change)
    with pytest.raises(BuildError, match=finding) as error:
        lint_repository(repository)
    if model != "tensorrt_llm_bls":
        assert str(repository / model / "config.pbtxt") in error.value.message


def test_all_mistakes_are_reported_together(repository: Path) -> None:
    (repository / "preprocessing" / "1" / "model.py").unlink()
    shutil.rmtree(repository / "postprocessing" / "1")
    (repository / "tensorrt_llm" / "config.pbtxt").write_text("max_batch_size: ${n}")
    with pytest.raises(BuildError) as error:
        lint_repository(repository)
    for finding in (
        "backend: python, and preprocessing/1/model.py is missing",
        "no version directory beside it",
        "tensorrt_llm/config.pbtxt:1:17",
        "step[1]: model 'tensorrt_llm' is not here",
    ):
        assert finding in error.value.message


def test_an_empty_directory_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no model in it"):
        lint_repository(tmp_path)
