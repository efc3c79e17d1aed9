"""Which learning rate the candidates are scaled from: the file's, unless another is shown to need fewer samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.advise.read import Candidates, restricted
from analysis.advise.settings import Settings
from analysis.errors import InputError
from analysis.load import FINISHED, Sweep
from analysis.penalty import LogSample, pooled_spread
from analysis.study import Study

# Another rate must need this share fewer samples than the file's.
FEWER = 0.10
# Standard deviation of log N* between rates a factor 2 apart, before any run; of one seed where none says more.
RATE_SD, SEED_SD = 0.3, 0.12
MOST_STEPS_BEYOND = 2
# A trial of one of these statuses has nothing more to say.
DONE = (*FINISHED, "failed", "foreign", "unreadable", "duplicate")


@dataclass(frozen=True)
class Rates:
    """The rate chosen (NaN: the plan does not say its rates), why, what each needed, and the trials still missing.

    wanted: a rate beyond the grid that the plan does not hold.
    """

    chosen: float
    why: str
    grid: list[dict[str, Any]]
    missing: list[dict[str, Any]]
    wanted: float | None = None


def choose_rate(candidates: Candidates, settings: Settings) -> Rates:
    """The rate to go on with, by the reference's own samples to the target."""
    sweep = candidates.sweep
    if any(math.isnan(rate) for rate in candidates.rates):
        return Rates(math.nan, "the plan does not say which rates the arms were scaled from", [], [])
    own = candidates.rate_of(sweep.reference_arm)
    tried = {
        factor: rate for factor in _factors(candidates, settings, own) if (rate := _planned(candidates, own * factor))
    }
    arms = {rate: arm for rate in tried.values() if (arm := candidates.reference_at(rate))}
    if len(arms) < 2:
        return Rates(own, "one rate is planned: it was not tuned", [], [])
    missing = []
    if settings.owned:
        missing = [item for rate, arm in arms.items() for item in _missing(sweep, arm, settings.rate_seeds, rate)]
    samples = _samples(sweep, list(arms.values()))
    grid = [_row(rate, rate / own, arm, samples.get(arm)) for rate, arm in sorted(arms.items())]
    if missing or not samples:
        return Rates(
            own, "rates are still being tried" if missing else "no run of any rate has finished", grid, missing
        )
    chosen, why = _best(arms, samples, own)
    wanted = _beyond(chosen, own, sorted(arms), settings)
    if wanted is None or not settings.owned:
        return Rates(chosen, why, grid, [])
    planned = _planned(candidates, wanted)
    arm = candidates.reference_at(planned) if planned else None
    if planned is None or arm is None:
        return Rates(chosen, f"{why}; it is the last of the grid, and {wanted:.3g} is not planned", grid, [], wanted)
    return Rates(chosen, why, grid, _missing(sweep, arm, settings.rate_seeds, planned), wanted)


def _factors(candidates: Candidates, settings: Settings, own: float) -> list[float]:
    """The grid, and what was tried beyond it; of somebody else's records every rate."""
    if not settings.owned:
        return [rate / own for rate in candidates.rates]
    rows = candidates.sweep.trials
    begun = set(rows.index[rows["samples_trained"] > 0]) | set(rows.index[rows["status"].isin(DONE)])
    arms = set(rows.loc[list(begun), "arm"])
    more = [rate / own for rate in candidates.rates if candidates.reference_at(rate) in arms]
    return list(dict.fromkeys([*settings.rates, *more]))


def _planned(candidates: Candidates, rate: float) -> float | None:
    return next((other for other in candidates.rates if math.isclose(other, rate, rel_tol=0.01)), None)


def _missing(sweep: Sweep, arm: str, num: int, rate: float) -> list[dict[str, Any]]:
    rows = sweep.trials[sweep.trials["arm"] == arm].sort_values("seed")[:num]
    return [
        {"do": "run", "arm": arm, "seed": int(row["seed"]), "trial": trial, "why": f"the reference at lr {rate:.3g}"}
        for trial, row in rows.iterrows()
        if row["status"] not in DONE
    ]


def _samples(sweep: Sweep, arms: list[str]) -> dict[str, LogSample]:
    try:
        found = Study(restricted(sweep, arms, arms[0])).samples["interpolated"]
    except InputError:
        return {}
    return {arm: sample for arm, sample in found.items() if sample.size}


def _row(rate: float, factor: float, arm: str, sample: LogSample | None) -> dict[str, Any]:
    row: dict[str, Any] = {"lr": rate, "factor": factor, "arm": arm, "samples_to_target": None, "seeds": 0}
    if sample is not None:
        row["seeds"] = sample.size
        if sample.complete:
            row["samples_to_target"] = math.exp(float(sample.values.mean()))
        elif len(sample.bounds):
            row["beyond"] = math.exp(float(sample.bounds.max()))
    return row


def _best(arms: dict[float, str], samples: dict[str, LogSample], own: float) -> tuple[float, str]:
    """The file's rate, or the one that needs least where that is at least FEWER less (shrunk towards no difference)."""
    reached = {rate: samples[arm] for rate, arm in arms.items() if arm in samples and samples[arm].complete}
    if not reached:
        return own, "no rate reached the target: the file's stands"
    if own not in reached:
        best = min(reached, key=lambda rate: float(reached[rate].values.mean()))
        return best, f"lr {own:.3g}, the file's, did not reach the target"
    spread = pooled_spread(list(samples.values()))
    var = (4 * SEED_SD**2 + spread.df * spread.sd**2) / (4 + spread.df)
    gain = {}
    for rate, sample in reached.items():
        prior = (RATE_SD * math.log2(rate / own)) ** 2
        error = var * (1 / len(sample.values) + 1 / len(reached[own].values))
        gain[rate] = float(np.mean(sample.values) - np.mean(reached[own].values)) * prior / (prior + error)
    best = min(gain, key=gain.__getitem__)
    if gain[best] > math.log(1 - FEWER):
        return own, f"no other rate is shown to need {FEWER:.0%} fewer samples"
    return best, f"it needs {1 - math.exp(gain[best]):.0%} fewer samples than the file's {own:.3g}"


def _beyond(chosen: float, own: float, tried: list[float], settings: Settings) -> float | None:
    """A factor 2 beyond the grid where the best rate is its last, at most twice."""
    if chosen == own or chosen not in (tried[0], tried[-1]):
        return None
    edge = own * (max(settings.rates) if chosen == tried[-1] else min(settings.rates))
    steps = round(abs(math.log2(chosen / edge)))
    if steps >= MOST_STEPS_BEYOND:
        return None
    return chosen * (2 if chosen == tried[-1] else 0.5)
