"""What is known of the candidates of an advice, whatever it was read from: plain numbers for the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from analysis.advise.stability import Stability
from analysis.penalty import LogSample


@dataclass(frozen=True)
class Candidate:
    """An arm that may be advised.

    family: what it does not share with the reference but for its batch and rate; () for the reference's own family.
    learns_as: the arm it shares N* with, itself unless only settings of the system tell the two apart. lr: None where
    no record says it.
    """

    arm: str
    num_prompts: int
    group_size: int
    learns_as: str
    family: tuple[str, ...] = ()
    lr: float | None = None

    @property
    def train_batch(self) -> int:
        """B = P*G."""
        return self.num_prompts * self.group_size


@dataclass(frozen=True)
class Noise:
    """log of the noise scale in responses with its standard deviation; between_frac: the share G * between of tr(S).

    between_frac None: the split between and within prompts was not measured.
    """

    log_scale: float
    sd: float
    between_frac: float | None = None


@dataclass(frozen=True)
class LocalRatio:
    """log r_N of an arm from branches, with the error of measurement; `beyond`: only known to exceed log_r_N."""

    log_r_N: float
    sd: float
    beyond: bool = False


@dataclass(frozen=True)
class Speed:
    """log q of an arm (samples per second) with the error of that mean and its degrees of freedom (0: no error known).

    generate_frac, train_frac: their shares of the seconds, NaN where a log does not divide them.
    """

    log_q: float
    sd: float
    df: float = math.inf
    generate_frac: float = math.nan
    train_frac: float = math.nan


@dataclass(frozen=True)
class Evidence:
    """Everything the model looks at. runs: log N* of full runs, branches, speed: each by arm, arms without are absent.

    noise None: nothing is known of the noise scale. budget_samples: what a run may use. broke: runs of an arm that
    broke, which are no part of `runs`. stability: what runs of all rates say of where they break, None: nothing.
    """

    candidates: tuple[Candidate, ...]
    reference: str
    runs: Mapping[str, LogSample] = field(default_factory=dict)
    branches: Mapping[str, LocalRatio] = field(default_factory=dict)
    speed: Mapping[str, Speed] = field(default_factory=dict)
    noise: Noise | None = None
    budget_samples: float = math.inf
    broke: Mapping[str, int] = field(default_factory=dict)
    stability: Stability | None = None

    def of(self, arm: str) -> Candidate:
        """The candidate of that name."""
        return next(candidate for candidate in self.candidates if candidate.arm == arm)

    @property
    def learners(self) -> tuple[str, ...]:
        """The arms that have an N* of their own."""
        return tuple(dict.fromkeys(candidate.learns_as for candidate in self.candidates))
