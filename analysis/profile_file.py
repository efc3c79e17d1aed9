"""profile.json, checked: what `python -m harness profile` measured, as frozen objects. Wrong files are one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from analysis.errors import InputError
from analysis.penalty import Interval
from analysis.plan_file import AxisValue, Count, Finite, Name, Text

FORMAT = 1
Positive = Annotated[Finite, Field(gt=0)]
Share = Annotated[Finite, Field(ge=0)]
Limits = tuple[Finite | None, Finite | None]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class Rate(_Model):
    """A rate: geometric mean with its 95% interval, and what each round gave."""

    estimate: Positive
    ci95: Annotated[Limits, Field(strict=False)]
    half_width: Finite | None
    each: list[Positive] = Field(min_length=1)


class Knee(_Model):
    """The batch with most of the plateau; see harness/knee.py for the rule."""

    estimate: Positive | None
    ci95: Annotated[Limits, Field(strict=False)]
    bound: Literal["upper"] | None
    per_s: Positive
    reached: bool
    plateau_frac: Positive

    @property
    def interval(self) -> Interval:
        """The batch."""
        return Interval(self.estimate, *self.ci95, self.bound)


class Memory(_Model):
    """The most responses in flight that memory allows; None: not known."""

    responses: Annotated[int, Field(ge=0)] | None
    source: Text


class Lengths(_Model):
    """Tokens of the responses."""

    mean: Positive
    p95: Positive
    max: Positive


class Point(_Model):
    """An arm in one phase. The last fields are of generation alone; its in_flight are the places there are."""

    arm: Name
    num_prompts: Count
    train_batch: Count
    rounds: Count
    responses_per_s: Rate
    tokens_per_s: Rate
    in_flight: Count | None = None
    in_flight_mean: Positive | None = None
    tail_frac: Share | None = None
    response_tokens: Lengths | None = None
    prompt_tokens_mean: Positive | None = None


class Curve(_Model):
    """The arms that differ in their batch alone, by batch."""

    phase: Literal["generate", "train"]
    family: dict[str, AxisValue]
    along: Literal["in_flight", "train_batch"]
    knee: Knee | None
    points: list[Point] = Field(min_length=1)
    memory_limit: Memory | None = None

    @property
    def batch_A(self) -> np.ndarray:
        """Responses in flight, or B; the same batch of two arms occurs twice."""
        return np.array([getattr(point, self.along) for point in self.points])

    def rates_RA(self, of: Literal["responses", "tokens"] = "responses") -> np.ndarray:
        """Per second, in the rounds that every arm has."""
        each = [getattr(point, f"{of}_per_s").each for point in self.points]
        rounds = min(map(len, each))
        return np.array([rates[-rounds:] for rates in each]).T


class Machine(_Model):
    """Where it was measured, with the speeds of a matrix product and of a copy there."""

    device: Text
    on_gpu: bool
    threads: Count
    dtype: Name
    matmul_flop_per_s: Positive
    copy_bytes_per_s: Positive
    memory_bytes: Count


class Profile(_Model):
    """A whole profile. model: its configuration, as transformers has it. load_before: of the calling machine."""

    format: Literal[1]
    sweep: Name
    reference_arm: Name
    lengths: Text
    rounds: Annotated[int, Field(ge=0)]
    ended: Text
    load_before: Annotated[Finite, Field(ge=0)]
    machine: Machine
    model: dict[str, Any]
    curves: list[Curve]

    def of(self, phase: Literal["generate", "train"]) -> list[Curve]:
        """The curves of a phase, that of the reference arm first."""
        own = [curve for curve in self.curves if curve.phase == phase]
        return sorted(own, key=lambda curve: all(point.arm != self.reference_arm for point in curve.points))


def read_profile(folder: Path) -> Profile | None:
    """The profile in the folder of a sweep; None where there is none. Raises InputError where it cannot be used."""
    path = folder / "profile.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    try:
        return Profile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{path}: {place}: {first['msg']}; python -m harness profile writes it anew") from None
