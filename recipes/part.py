"""What every part of a recipe is: closed, immutable, documented."""

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A part of a recipe; an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
