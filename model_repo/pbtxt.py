"""The text form of a model's configuration; Triton's own message classes do the spelling.

A configuration is built from the objects of specs.py, serialized by protobuf, and parsed back
after writing: there is no template, so there is no placeholder that could be left unfilled.

Source: triton-inference-server/common protobuf/model_config.proto, as shipped by tritonclient.
"""

from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from llmc.errors import BuildError
from llmc.model_repo.specs import DynamicBatching, ModelSpec, QueuePolicy, Warmup

CONFIG_FILE = "config.pbtxt"


def to_message(spec: ModelSpec) -> Any:
    """Return Triton's ModelConfig message of `spec`."""
    config = model_config_pb2.ModelConfig(name=spec.name, max_batch_size=spec.max_batch_size)
    for tensor in spec.inputs:
        message = config.input.add(
            name=tensor.name,
            data_type=f"TYPE_{tensor.dtype}",
            dims=tensor.dims,
            optional=tensor.optional,
            allow_ragged_batch=tensor.ragged,
        )
        if tensor.scalar:
            message.reshape.SetInParent()
    for tensor in spec.outputs:
        config.output.add(name=tensor.name, data_type=f"TYPE_{tensor.dtype}", dims=tensor.dims)
    for key, value in spec.parameters.items():
        config.parameters[key].string_value = value
    if spec.steps:
        config.platform = "ensemble"
        for step in spec.steps:
            config.ensemble_scheduling.step.add(
                model_name=step.model,
                model_version=-1,
                input_map=step.inputs,
                output_map=step.outputs,
            )
        return config
    assert spec.instance_count is not None, spec.name
    config.backend = spec.backend
    config.instance_group.add(
        count=spec.instance_count, kind=model_config_pb2.ModelInstanceGroup.KIND_CPU
    )
    if spec.decoupled is not None:
        config.model_transaction_policy.decoupled = spec.decoupled
    if spec.dynamic_batching is not None:
        _set_batching(config.dynamic_batching, spec.dynamic_batching)
    if spec.warmup is not None:
        _add_warmup(config, spec.warmup)
    return config


def _set_batching(message: Any, batching: DynamicBatching) -> None:
    message.SetInParent()
    if batching.preferred_batch_size is not None:
        message.preferred_batch_size.append(batching.preferred_batch_size)
    message.max_queue_delay_microseconds = batching.max_queue_delay_microseconds
    message.priority_levels = batching.priority_levels
    message.default_priority_level = batching.default_priority_level
    if batching.queue is not None:
        _set_queue(message.default_queue_policy, batching.queue)
    for level, queue in enumerate(batching.priority_queues, start=1):
        _set_queue(message.priority_queue_policy[level], queue)


def _set_queue(message: Any, queue: QueuePolicy) -> None:
    message.SetInParent()
    message.max_queue_size = queue.max_queue_size
    message.default_timeout_microseconds = queue.timeout_microseconds
    message.timeout_action = message.TimeoutAction.Value(queue.timeout_action)
    message.allow_timeout_override = queue.allow_timeout_override


def _add_warmup(config: Any, warmup: Warmup) -> None:
    message = config.model_warmup.add(name=warmup.name, batch_size=warmup.batch_size)
    types = {tensor.name: tensor.data_type for tensor in config.input}
    for name, values in warmup.inputs.items():
        message.inputs[name].data_type = types[name]
        message.inputs[name].dims.append(len(values))
        message.inputs[name].input_data_file = name


def write_config(spec: ModelSpec, path: Path) -> None:
    """Write `spec` as `path` and make sure that it reads back as the same message.

    Raises: BuildError when it does not.
    """
    message = to_message(spec)
    path.write_text(text_format.MessageToString(message), encoding="utf-8")
    if read_config(path) != message:
        raise BuildError(f"{path}: reads back as something else than was written")


def read_config(path: Path) -> Any:
    """Parse a config.pbtxt as Triton would. Raises: BuildError with the line at fault."""
    try:
        text = path.read_text(encoding="utf-8")
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(f"{path}: {error}; expected a model configuration") from error
    except text_format.ParseError as error:
        raise BuildError(f"{path}:{error}; expected Triton's ModelConfig") from error
