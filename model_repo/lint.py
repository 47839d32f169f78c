"""Find the mistakes in a model repository that Triton would only meet while loading or serving it.

Every config.pbtxt is parsed; every reason is collected, each with file and field, and all are
raised together. Works on any repository, also one edited by hand or written by someone else.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmc.errors import BuildError
from llmc.model_repo.pbtxt import CONFIG_FILE, read_config

PATH_PARAMETERS = ("gpt_model_path", "tokenizer_dir")


def lint_repository(repository: Path) -> None:
    """Check every model of `repository`.

    Raises: BuildError that lists all findings, one `file: field: what is wrong` each.
    """
    configs: dict[str, Any] = {}
    findings: list[str] = []
    directories = sorted(path for path in repository.iterdir() if path.is_dir())
    if not directories:
        findings.append(f"{repository}: no model in it")
    for directory in directories:
        try:
            configs[directory.name] = read_config(directory / CONFIG_FILE)
        except BuildError as error:
            findings.append(error.message)
    for name, config in configs.items():
        file = repository / name / CONFIG_FILE
        findings += [f"{file}: {finding}" for finding in _check_model(name, config, repository)]
        if config.HasField("ensemble_scheduling"):
            findings += [f"{file}: {finding}" for finding in _check_ensemble(config, configs)]
    findings += [f"{repository}: {finding}" for finding in _check_decoupled(configs)]
    if findings:
        lines = [f"{repository}: not servable", *(f"  - {finding}" for finding in findings)]
        raise BuildError("\n".join(lines))


def _check_model(name: str, config: Any, repository: Path) -> Iterator[str]:
    if config.name != name:
        yield f"name: {config.name!r}, expected its directory's name {name!r}"
    yield from _check_placeholders(config)
    yield from _check_paths(config, repository)
    versions = [path.name for path in (repository / name).iterdir() if path.name.isdigit()]
    if not versions:
        yield "no version directory beside it"
    for kind in ("input", "output"):
        names = [tensor.name for tensor in getattr(config, kind)]
        for repeated in sorted({tensor for tensor in names if names.count(tensor) > 1}):
            yield f"{kind}: {repeated!r} is there twice"
    if config.platform == "ensemble":
        return
    if not config.instance_group:
        yield "instance_group: missing, Triton would choose its own"
    for group in config.instance_group:
        if group.count < 1 or group.kind == group.KIND_AUTO:
            yield "instance_group: count and kind must be given"
    if config.backend == "python":
        for version in versions:
            if not (repository / name / version / "model.py").is_file():
                yield f"backend: python, and {name}/{version}/model.py is missing"


def _check_placeholders(config: Any) -> Iterator[str]:
    for key in sorted(config.parameters):
        value = config.parameters[key].string_value
        if "${" in value:
            yield f"parameters.{key}: {value!r} is an unfilled placeholder"
    for field in ("name", "backend", "platform"):
        if "${" in getattr(config, field):
            yield f"{field}: {getattr(config, field)!r} is an unfilled placeholder"


def _check_paths(config: Any, repository: Path) -> Iterator[str]:
    """Relative paths are llmc's own; an absolute one may be of another machine or container."""
    for key in PATH_PARAMETERS:
        value = config.parameters[key].string_value if key in config.parameters else ""
        if value and not Path(value).is_absolute() and not (repository / value).is_dir():
            yield f"parameters.{key}: {value!r} is no directory, seen from {repository}"


def _check_ensemble(ensemble: Any, configs: dict[str, Any]) -> Iterator[str]:
    """Compare the maps of an ensemble with the tensors of the models it is made of."""
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


def _check_decoupled(configs: dict[str, Any]) -> Iterator[str]:
    """A client meets streaming in two models; both must have it or neither."""
    policies = {
        name: configs[name].model_transaction_policy.decoupled
        for name in ("tensorrt_llm", "tensorrt_llm_bls")
        if name in configs
    }
    if len(set(policies.values())) > 1:
        yield f"model_transaction_policy.decoupled: {policies}, expected the same everywhere"
