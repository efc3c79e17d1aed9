"""advise.json: what an advice may run and how sure it has to be; defaults where records are somebody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from analysis.errors import InputError
from analysis.records import read_object

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=10_000)]
Moments = Literal["rescaled", "restored", "fresh"]


class Settings(BaseModel):
    """The section `advise:` of a sweep file as the harness resolved it, and where it keeps what it runs.

    rates: factors of the reference's learning rate. tolerance: an arm within this share of the fastest is as good.
    confidence: the probability of that at which the advice stands. branches, speed: folders of sweeps beside this one.
    left_out: arms of the sweep file that are no candidates, and why.
    owned: whether the harness runs what is proposed; without advise.json the records are somebody else's.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    rates: tuple[Positive, ...] = (0.5, 1.0, 2.0)
    most_seeds: Count = 5
    rate_seeds: Count = 1
    reference_seeds: Count = 3
    branch_points: Annotated[int, Field(ge=0, le=10)] = 1
    branch_moments: Moments = "rescaled"
    tolerance: Share = 0.10
    confidence: Share = 0.95
    past_target: Positive = 0.5
    branches: str | None = None
    speed: str | None = None
    left_out: dict[str, str] = {}
    full_sweep_samples: Annotated[int, Field(ge=1)] | None = None
    owned: bool = False


def read_settings(folder: Path) -> Settings:
    """The settings of the advice in a folder. Raises InputError where advise.json is not what is needed."""
    path = folder / "advise.json"
    if not path.exists():
        return Settings()
    content: dict[str, Any] = read_object(path) if path.is_file() else {}
    if not content:
        raise InputError(f"{path}: is no JSON object with settings; python -m harness advise FILE writes it anew")
    name = folder.resolve().name
    given = {"branches": f"{name}-branches", "speed": f"{name.removesuffix('-advise')}-advise-speed", "owned": True}
    try:
        return Settings.model_validate(given | content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path}: {place} is {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}"
        ) from None
