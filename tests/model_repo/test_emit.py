import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from llmc.errors import CheckpointError, UnsupportedError
from llmc.model_repo import MODELS
from llmc.model_repo.emit import emit_repository
from llmc.model_repo.lint import lint_repository
from llmc.model_repo.pbtxt import read_config
from tests.model_repo.handmade import UPSTREAM
from tests.model_repo.served import options


@pytest.fixture
def engine_dir(tmp_path: Path) -> Path:
    """As much of an engine directory as emitting reads."""
    directory = tmp_path / "out" / "engine"
    directory.mkdir(parents=True)
    config = {
        "llmc": {"target": "cpu"},
        "pretrained_config": {"logits_dtype": "float32"},
        "build_config": {"max_batch_size": 8},
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def emit(engine_dir: Path, **changes: Any) -> Path:
    repository = engine_dir.parent / "model_repo"
    repository.mkdir()
    emit_repository(engine_dir, repository, options(**changes))
    return repository


def describe(tensor: Any) -> dict[str, Any]:
    """Return a tensor of a parsed configuration in the form of inflight_batcher_llm.json."""
    field = tensor.DESCRIPTOR.fields_by_name["data_type"]
    dtype = field.enum_type.values_by_number[tensor.data_type].name.removeprefix("TYPE_")
    described = {"name": tensor.name, "dtype": dtype, "dims": list(tensor.dims)}
    if hasattr(tensor, "optional"):
        described["optional"] = tensor.optional
        described["scalar"] = tensor.HasField("reshape")
        described["ragged"] = tensor.allow_ragged_batch
    return described


@pytest.mark.parametrize("model", MODELS)
def test_a_client_of_tensorrt_llm_finds_every_tensor(engine_dir: Path, model: str) -> None:
    config = read_config(emit(engine_dir) / model / "config.pbtxt")
    assert (config.name, config.max_batch_size) == (model, 8)
    for kind, tensors in (("inputs", config.input), ("outputs", config.output)):
        ours = {tensor.name: describe(tensor) for tensor in tensors}
        assert len(ours) == len(tensors)
        theirs = {tensor["name"]: tensor for tensor in UPSTREAM[model][kind]}
        assert theirs.keys() <= ours.keys()
        for name, tensor in theirs.items():
            dtype = tensor["dtype"].replace("LOGITS", "FP32")
            assert ours[name] == tensor | {"dtype": dtype}
        assert all(ours[name].get("optional", True) for name in ours.keys() - theirs.keys())


def test_parameters_have_tensorrt_llms_names(engine_dir: Path) -> None:
    repository = emit(engine_dir, max_tokens_in_paged_kv_cache=640)
    own = {
        ("postprocessing", "tensorrt_llm_model_name"),
        ("tensorrt_llm", "skip_special_tokens"),
        ("tensorrt_llm", "launch_mode"),
        ("tensorrt_llm", "rank_timeout_s"),
        ("tensorrt_llm", "max_rank_restarts"),
        ("tensorrt_llm_bls", "cancellation_check_period_ms"),
    }
    for model in MODELS:
        config = read_config(repository / model / "config.pbtxt")
        extra = set(config.parameters) - set(UPSTREAM[model]["parameters"])
        assert {(model, name) for name in extra} <= own
    parameters = read_config(repository / "tensorrt_llm" / "config.pbtxt").parameters
    assert parameters["max_tokens_in_paged_kv_cache"].string_value == "640"
    assert parameters["gpt_model_path"].string_value == "../engine"


def test_the_ensemble_connects_what_tensorrt_llms_connects(engine_dir: Path) -> None:
    config = read_config(emit(engine_dir) / "ensemble" / "config.pbtxt")
    text = {tensor.name for tensor in config.input} | {tensor.name for tensor in config.output}
    for ours, theirs in zip(
        config.ensemble_scheduling.step, UPSTREAM["ensemble"]["steps"], strict=True
    ):
        assert ours.model_name == theirs["model"]
        assert theirs["inputs"].keys() <= ours.input_map.keys()
        assert theirs["outputs"].keys() <= ours.output_map.keys()
        for mine, their in ((ours.input_map, "inputs"), (ours.output_map, "outputs")):
            for name, target in theirs[their].items():
                if target in text:
                    assert mine[name] == target


def test_instances_and_policies_are_explicit(engine_dir: Path) -> None:
    repository = emit(
        engine_dir, preprocessing_instance_count=3, bls_instance_count=4, priority_levels=2
    )
    counts = {"preprocessing": 3, "tensorrt_llm": 1, "postprocessing": 1, "tensorrt_llm_bls": 4}
    for model, count in counts.items():
        config = read_config(repository / model / "config.pbtxt")
        (group,) = config.instance_group
        assert (group.count, group.kind) == (count, group.KIND_CPU)
        assert (repository / model / "1" / "model.py").is_file()
    config = read_config(repository / "tensorrt_llm" / "config.pbtxt")
    assert config.model_transaction_policy.decoupled
    assert config.dynamic_batching.priority_levels == 2
    assert config.dynamic_batching.default_priority_level == 2
    assert not read_config(repository / "ensemble" / "config.pbtxt").instance_group


def test_the_tree_can_be_moved_but_not_torn_apart(engine_dir: Path) -> None:
    emit(engine_dir)
    moved = engine_dir.parent.rename(engine_dir.parent.with_name("elsewhere"))
    lint_repository(moved / "model_repo")
    shutil.rmtree(moved / "engine")
    with pytest.raises(Exception, match="gpt_model_path: '../engine' does not exist"):
        lint_repository(moved / "model_repo")


def test_options_that_cannot_work_are_refused(engine_dir: Path, tmp_path: Path) -> None:
    for changes, reason in (
        ({"max_batch_size": 9}, "max_batch_size: 9 is more than the engine's 8"),
        ({"postprocessing_instance_count": 2}, "postprocessing_instance_count: 2 with decoupled"),
    ):
        with pytest.raises(UnsupportedError, match=reason):
            emit_repository(engine_dir, tmp_path, options(**changes))
    emit(engine_dir, postprocessing_instance_count=2, decoupled=False, max_batch_size=4)


def test_what_is_no_engine_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="config.json: not found, expected an engine"):
        emit_repository(tmp_path, tmp_path, options())
    (tmp_path / "config.json").write_text('{"architecture": "LlamaForCausalLM"}')
    with pytest.raises(CheckpointError, match="KeyError.*pretrained_config.*expected an engine's"):
        emit_repository(tmp_path, tmp_path, options())
