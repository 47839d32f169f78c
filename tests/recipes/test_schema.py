"""The recipe speaks the words of the rooms it configures."""

import dataclasses

import pytest

from llmc.model_repo.options import RepositoryOptions
from llmc.model_repo.parameters import TENSORRT_LLM, Parameter
from llmc.model_repo.template import fill_template
from llmc.recipes.serve import ServeRecipe, TensorrtLlmServe


def test_serve_is_the_options_of_the_repository() -> None:
    options = {field.name for field in dataclasses.fields(RepositoryOptions)}
    assert set(ServeRecipe.model_fields) == options
    RepositoryOptions(**ServeRecipe().model_dump())


PARAMETERS = {parameter.name: parameter for parameter in TENSORRT_LLM}
GOOD: dict[str, list[object]] = {
    "int": [1, 4096],
    "float": [0, 0.25, 1],
    "bool": [True, False],
    "ints": [[512], [4096, 512]],
    "ids": [[[0, 1]], [[0], [1]]],
    "tree": [[[0], [0, 1]]],
    "path": ["/there"],
}
BAD: dict[str, list[object]] = {
    "int": [-1, 0.5, "many", True],
    "float": [-0.1, 1.5, "most"],
    "bool": ["yes", 2],
    "ints": [512, [-1]],
    "ids": [[0, 1], "0,1", [[-1]]],
    "tree": ["{0}", [0]],
    "path": [3],
    "choice": ["other", True],
}


@pytest.mark.parametrize("name", sorted(set(TensorrtLlmServe.model_fields) - {"batching_strategy"}))
def test_a_field_is_the_parameter_of_its_name(name: str) -> None:
    """It takes what the parameter takes, spelled as the backend reads it, and nothing else."""
    parameter: Parameter = PARAMETERS[name]
    assert parameter.owner == "tensorrt_llm" and parameter.until is None
    assert TensorrtLlmServe.model_fields[name].default is None
    good = [*parameter.choices] if parameter.choices else GOOD[parameter.kind]
    for value in good:
        read = getattr(TensorrtLlmServe.model_validate({name: value}), name)
        spelled = fill_template("tensorrt_llm", {name: read})[name]
        assert spelled and parameter.mistake(spelled) is None
    for value in BAD[parameter.kind]:
        with pytest.raises(ValueError, match=name):
            TensorrtLlmServe.model_validate({name: value})
    if parameter.default not in ("none", "required"):
        description = TensorrtLlmServe.model_fields[name].description or ""
        words = {"no limit": "all", "the longest sequence": "all"}
        wanted = words.get(parameter.default, parameter.default.removeprefix("the "))
        assert wanted.split(";")[0].split()[-1] in description.lower() + description
