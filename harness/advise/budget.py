"""What an advice may cost: a time or a number of samples, over all calls; and what it has cost, as its records say."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import InputError
from harness.plan import PlannedTrial
from harness.plan_file import read_plan
from harness.tracking.jsonl import read_objects, read_records
from harness.trial_queue import trial_dir

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Cost:
    """Responses trained on, and seconds of the clock."""

    samples: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.samples + other.samples, self.seconds + other.seconds)


@dataclass(frozen=True)
class Budget:
    """The most that all calls together may cost; None: as much as it takes."""

    samples: float | None = None
    seconds: float | None = None

    def allows(self, cost: Cost) -> bool:
        """Whether so much is within it.

        >>> Budget(samples=100).allows(Cost(100, 1e9)), Budget(seconds=60).allows(Cost(0, 61))
        (True, False)
        """
        return cost.samples <= (self.samples or cost.samples) and cost.seconds <= (self.seconds or cost.seconds)


def parse_budget(text: str) -> Budget:
    """A budget as it is written on the command line. Raises InputError.

    >>> parse_budget("2h"), parse_budget("600000samples")
    (Budget(samples=None, seconds=7200.0), Budget(samples=600000.0, seconds=None))
    >>> parse_budget("600,000samples")
    Budget(samples=600000.0, seconds=None)
    """
    found = re.fullmatch(r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:\.[0-9]+)?)(h|m|s|samples)", text.strip())
    number, unit = (float(found[1].replace(",", "")), found[2]) if found else (0.0, "")
    if not number:
        raise InputError(f"--budget {text}: needs a number with its unit, such as 2h, 45m, 90s or 600000samples")
    return Budget(samples=number) if unit == "samples" else Budget(seconds=number * _SECONDS[unit])


@dataclass(frozen=True)
class _Used:
    samples: int
    wall_s: float


def samples_used(folders: Sequence[Path]) -> int:
    """Responses that the trials of these sweeps trained on; of a branch those after its parent's."""
    return sum(used.samples for used in _used(folders))


def seconds_used(log: Path, folders: Sequence[Path], workers: int) -> float:
    """Seconds of the steps on record, interrupted ones too; at least those of the trials, should a step be missing."""
    lines, _ = read_objects(log)
    steps = (line.get("seconds") for line in lines)
    on_record = sum(spent for spent in steps if isinstance(spent, int | float) and 0 <= spent < math.inf)
    return max(on_record, sum(used.wall_s for used in _used(folders)) / workers)


def last_record_s(folders: Sequence[Path]) -> float:
    """When the last record of a trial or a measurement in these sweeps was written, in seconds since 1970; 0: never."""
    found = (path for folder in folders for name in ("trials/*/metrics.jsonl", "*.jsonl") for path in folder.glob(name))
    return max((path.stat().st_mtime for path in found), default=0.0)


def _used(folders: Sequence[Path]) -> list[_Used]:
    plans = ((folder, read_plan(folder)) for folder in folders)
    return [_of(folder, trial) for folder, plan in plans if plan for trial in plan.trials]


def _of(folder: Path, trial: PlannedTrial) -> _Used:
    run = trial_dir(folder, trial)
    outcome = run.outcome()
    if outcome is not None:
        trained, wall_s = outcome.samples_trained, outcome.wall_s
    else:
        records, _ = read_records(run.metrics_path)
        trained = max((record["samples_trained"] for record in records), default=0)
        wall_s = max((record.get("wall_s", 0.0) for record in records), default=0.0)
    return _Used(max(0, trained - trial.config.first_samples), wall_s)
