"""The recipe speaks the words of the rooms it configures."""

import dataclasses

from llmc.model_repo.options import RepositoryOptions
from llmc.recipes.serve import ServeRecipe


def test_serve_is_the_options_of_the_repository() -> None:
    options = {field.name for field in dataclasses.fields(RepositoryOptions)}
    assert set(ServeRecipe.model_fields) == options
    RepositoryOptions(**ServeRecipe().model_dump())
