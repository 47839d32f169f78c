"""Compare the parameters of a model with the table: names, values, versions, paths."""

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from llmc.model_repo.parameters import PARAMETERS, Parameter, Version, parse_version


def kind_of(name: str, config: Any) -> str | None:
    """Say which model of the table `config` is, also under a name of its own; None: none of them.

    A model of the C++ backend, or one that names an engine and how it batches, is a `tensorrt_llm`
    whatever it is called.
    """
    if config.backend == "tensorrtllm" or "gpt_model_type" in config.parameters:
        return "tensorrt_llm"
    # The longest first: tensorrt_llm_bls begins with tensorrt_llm.
    kinds = sorted(PARAMETERS, key=len, reverse=True)
    return next((kind for kind in kinds if name.startswith(kind)), None)


def values_of(config: Any) -> dict[str, str]:
    """Return the parameters that have a value; a placeholder is none."""
    values = {key: value.string_value for key, value in config.parameters.items()}
    return {key: value for key, value in values.items() if value and "${" not in value}


def check_parameters(kind: str, config: Any, version: Version | None) -> Iterator[str]:
    """Yield every parameter that is unknown, has a wrong value or is not of `version`.

    `version` is that of TensorRT-LLM, None where it is not known or does not matter.
    """
    table = {parameter.name: parameter for parameter in PARAMETERS[kind]}
    for key in sorted(config.parameters):
        where = f"parameters.{key}"
        value = config.parameters[key].string_value
        if key not in table:
            yield f"{where}: unknown to {kind}{_suggest(key, table)}"
            continue
        if "${" in value:
            continue
        mistake = table[key].mistake(value)
        if mistake:
            yield f"{where}: {mistake}{_suggest(value, table[key].choices)}"
        if version and value:
            yield from _check_version(where, table[key], version)
    for parameter in table.values():
        if parameter.required and parameter.name not in config.parameters:
            yield f"parameters.{parameter.name}: missing"


def check_paths(kind: str, config: Any, repository: Path, *, elsewhere: bool) -> Iterator[str]:
    """Yield every path that is not there; relative ones are seen from the repository.

    `elsewhere`: absolute paths are of another machine or container, and not looked at.
    """
    values = values_of(config)
    for parameter in PARAMETERS[kind]:
        value = values.get(parameter.name)
        if parameter.kind != "path" or value is None:
            continue
        where = f"parameters.{parameter.name}: {value!r}"
        if Path(value).is_absolute():
            if not elsewhere and not Path(value).exists():
                yield f"{where} does not exist here"
        elif not (repository / value).exists():
            yield f"{where} does not exist, seen from {repository}"


def _check_version(where: str, parameter: Parameter, version: Version) -> Iterator[str]:
    since = parse_version(parameter.since)
    until = parse_version(parameter.until or "")
    used = ".".join(map(str, version))
    if parameter.owner == "llmc":
        yield f"{where}: llmc's own, TensorRT-LLM {used} ignores it"
    elif since and version < since:
        yield f"{where}: TensorRT-LLM has it since {parameter.since}, the engine is of {used}"
    elif until and version > until:
        yield f"{where}: gone since {parameter.until}, use {parameter.replaced_by}"


def _suggest(word: str, known: Any) -> str:
    close = get_close_matches(word, known, n=1)
    return f", did you mean {close[0]!r}?" if close else ""
