"""Compare the maps of an ensemble with the tensors of the models it is made of."""

from collections.abc import Iterator
from typing import Any


def check_ensemble(ensemble: Any, configs: dict[str, Any]) -> Iterator[str]:
    """Yield what does not fit; `configs` are all models of the repository."""
    types = {tensor.name: tensor.data_type for tensor in ensemble.input}
    steps = [(step, configs.get(step.model_name)) for step in ensemble.ensemble_scheduling.step]
    for index, (step, model) in enumerate(steps):
        if model is None:
            yield f"ensemble_scheduling.step[{index}]: model {step.model_name!r} is not here"
            continue
        where = f"ensemble_scheduling.step[{index}].output_map"
        outputs = {tensor.name: tensor for tensor in model.output}
        for name, target in step.output_map.items():
            if name not in outputs:
                yield f"{where}: {step.model_name} has no output {name!r}"
            else:
                types[target] = outputs[name].data_type
        if 0 < model.max_batch_size < ensemble.max_batch_size:
            yield (
                f"max_batch_size: {ensemble.max_batch_size}, but {step.model_name} takes"
                f" {model.max_batch_size}"
            )
    for index, (step, model) in enumerate(steps):
        if model is not None:
            where = f"ensemble_scheduling.step[{index}].input_map"
            yield from _check_inputs(where, step, model, types)
    for tensor in ensemble.output:
        if tensor.name not in types:
            yield f"output: no step makes {tensor.name!r}"
        elif types[tensor.name] != tensor.data_type:
            yield f"output: {tensor.name!r} differs in type from the step that makes it"


def _check_inputs(where: str, step: Any, model: Any, types: dict[str, int]) -> Iterator[str]:
    inputs = {tensor.name: tensor for tensor in model.input}
    for name, source in step.input_map.items():
        if name not in inputs:
            yield f"{where}: {step.model_name} has no input {name!r}"
        elif source not in types:
            yield f"{where}: {name!r} comes from {source!r}, which nothing makes"
        elif types[source] != inputs[name].data_type:
            yield f"{where}: {name!r} and {source!r} differ in type"
    for name, tensor in inputs.items():
        if not tensor.optional and name not in step.input_map:
            yield f"{where}: {step.model_name}'s required input {name!r} is missing"
