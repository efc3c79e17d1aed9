"""The section `advise:` of a sweep file. It is no part of a trial: changing it makes no trial another one."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.errors import InputError
from harness.fields import Count, Strict

Moments = Literal["rescaled", "restored", "fresh"]
Seeds = Annotated[int, Field(ge=1, le=10_000)]


class AdviseConfig(Strict):
    """What an advice may run, and how sure it has to be."""

    rates: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(strict=False, min_length=1)] = Field(
        (0.5, 1.0, 2.0), description="factors of optimizer.lr that the reference is tried with"
    )
    first_seed: Count = Field(1000, description="seeds are counted from here: not those of the sweep")
    most_seeds: Seeds = Field(5, description="most seeds of an arm")
    rate_seeds: Seeds = Field(1, description="seeds of each rate")
    reference_seeds: Seeds = Field(3, description="seeds of the reference at the chosen rate, before branches")
    branch_points: int = Field(
        1, ge=0, le=10, description="checkpoints of a reference trial to branch from; 0: no branches"
    )
    branch_moments: Moments = Field("rescaled", description="what becomes of Adam's moments (harness.moments)")
    tolerance: float = Field(0.10, gt=0, lt=1, description="an arm within this share of the fastest is as good")
    confidence: float = Field(0.95, gt=0, lt=1, description="probability of that at which the advice stands")
    most_share: float | None = Field(
        0.35,
        gt=0,
        description="most of the whole sweep's samples where no --budget is given; null: as much as it takes",
    )
    past_target: float = Field(0.5, gt=0, description="stop_past_target_frac of the trials")

    @model_validator(mode="after")
    def _is_usable(self) -> Self:
        if 1.0 not in self.rates:
            raise InputError(f"advise.rates: {list(self.rates)}; needs 1, the rate of the file, among them")
        if len(set(self.rates)) < len(self.rates):
            raise InputError(f"advise.rates: {list(self.rates)}; needs each factor once")
        if self.most_seeds < max(self.rate_seeds, self.reference_seeds):
            raise InputError(
                f"advise.most_seeds: {self.most_seeds} is below rate_seeds or reference_seeds, needs at least "
                f"{max(self.rate_seeds, self.reference_seeds)}"
            )
        return self
