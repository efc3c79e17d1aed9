"""What the sections of a configuration are built from."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
# YAML and JSON know only lists; strictness still holds for what is in them.
Betas = Annotated[tuple[Beta, Beta], Field(strict=False)]
# JSON knows only text as a key.
LrTable = Annotated[dict[Annotated[int, Field(ge=1, strict=False)], Annotated[float, Field(gt=0)]], Field(min_length=1)]


class Strict(BaseModel):
    """Base of every section: no unknown key, no conversion from text, no NaN, no assignment."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
