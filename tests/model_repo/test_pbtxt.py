from pathlib import Path

import pytest

from llmc.errors import BuildError
from llmc.model_repo.pbtxt import read_config, to_message, write_config
from llmc.model_repo.specs import DynamicBatching, EnsembleStep, ModelSpec, QueuePolicy, TensorSpec

SPEC = ModelSpec(
    name="echo",
    max_batch_size=4,
    inputs=(
        TensorSpec(name="x", dtype="INT32", dims=(-1,), ragged=True, optional=True),
        TensorSpec(name="n", dtype="INT32", scalar=True),
    ),
    outputs=(TensorSpec(name="y", dtype="FP32", dims=(-1, 3)),),
    instance_count=2,
    decoupled=True,
    dynamic_batching=DynamicBatching(queue=QueuePolicy(max_queue_size=7), preferred_batch_size=4),
    parameters={"path": 'a "quoted" ${name}\n\\ ü'},
)


def test_a_configuration_reads_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    write_config(SPEC, path)
    config = read_config(path)
    assert config == to_message(SPEC)
    assert config.input[0].allow_ragged_batch and config.input[0].optional
    assert config.input[1].HasField("reshape") and list(config.input[1].reshape.shape) == []
    assert not config.input[0].HasField("reshape")
    assert config.parameters["path"].string_value == SPEC.parameters["path"]
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 7
    assert config.model_transaction_policy.decoupled


def test_an_ensemble_has_steps_and_no_instances() -> None:
    step = EnsembleStep(model="echo", inputs={"x": "text"}, outputs={"y": "_y"})
    spec = ModelSpec(
        name="ensemble", max_batch_size=1, inputs=SPEC.inputs, outputs=SPEC.outputs, steps=(step,)
    )
    config = to_message(spec)
    assert config.platform == "ensemble" and not config.backend and not config.instance_group
    (written,) = config.ensemble_scheduling.step
    assert (written.model_name, written.model_version) == ("echo", -1)
    assert dict(written.input_map) == {"x": "text"} and dict(written.output_map) == {"y": "_y"}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('name: "a"\nmax_batch_size: ${triton_max_batch_size}\n', ":2:17 "),
        ('name: "a"\n\ninput { data_type: TYPE_FLOAT }\n', ":3:20 "),
        ('nam: "a"', ":1:1 "),
    ],
)
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text(text)
    with pytest.raises(BuildError, match=f"config.pbtxt{where}"):
        read_config(path)


def test_a_missing_file_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="config.pbtxt: .*expected a model configuration"):
        read_config(tmp_path / "config.pbtxt")
