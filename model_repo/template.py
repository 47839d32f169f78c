"""The parameters of NVIDIA's templates, filled in with values; their names are parameters.py's."""

from collections.abc import Mapping

from llmc.model_repo.parameters import PARAMETERS, Parameter


def fill_template(kind: str, given: Mapping[str, object]) -> dict[str, str]:
    """Return every parameter of TensorRT-LLM 1.2's template of a model, empty where not `given`.

    A key that the template lacks is there when it is given.
    """
    table = {parameter.name: parameter for parameter in PARAMETERS[kind]}
    filled = {
        name: _spell(table[name], given[name]) if name in given else parameter.literal or ""
        for name, parameter in table.items()
        if given.get(name) is not None
        or (parameter.owner == "tensorrt_llm" and parameter.until is None and parameter.in_template)
    }
    assert given.keys() <= table.keys(), given.keys() - table.keys()
    return filled


def _spell(parameter: Parameter, value: object) -> str:
    """Return a value as the backend reads it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        parts = (item if isinstance(item, tuple) else (item,) for item in value)
        lists = [",".join(map(str, part)) for part in parts]
        if parameter.kind == "tree":
            return ", ".join(f"{{{path}}}" for path in lists)
        return (";" if parameter.kind == "ids" else ",").join(lists)
    return str(value)
