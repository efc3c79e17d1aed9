"""From the folder of a sweep to the evidence of an advice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.advise.evidence import Candidate, Evidence, Noise, Speed
from analysis.advise.stability import Outcomes, Stability
from analysis.errors import InputError
from analysis.groups import Groups
from analysis.load import Sweep
from analysis.records import number
from analysis.scales import Scales
from analysis.study import BATCH_AXES, Study
from analysis.throughput import Clock

SYSTEM_AXES = ("batch.micro_batch_size_per_gpu", "gpus")
RULES = ("lr_rule", "critic_lr_rule")
MINI_BATCHES = ("mini_batch_size", "batch.mini_batch_size")
RATE_AXES = ("lr_ref", "optimizer.lr_ref", "optimizer.lr", "critic_lr_ref")
# log of a noise scale whose interval is not known: between seeds of one arm it differs by about a fifth.
LONE_NOISE_SD = 0.3
UNBOUNDED_NOISE_SD = 1.0
# Two rates, or two clocks, within this share of one another are the same.
SAME = 1e-3


def base_rate(sweep: Sweep, arm: str) -> float | None:
    """The rate at the reference's batch that an arm's own is scaled from; None where the plan does not say."""
    for trial in sweep.plan.trials:
        if trial.arm == arm:
            rate = trial.configured("optimizer", "lr_ref")
            return float(rate) if isinstance(rate, int | float) and rate > 0 else None
    return None


def restricted(sweep: Sweep, arms: Sequence[str], reference: str) -> Sweep:
    """The sweep with some of its arms alone, and another reference."""
    kept = list(arms)

    def of(table: pd.DataFrame) -> pd.DataFrame:
        return table[table["arm"].isin(kept)]

    return replace(
        sweep,
        reference_arm=reference,
        arms=sweep.arms.loc[kept],
        trials=of(sweep.trials),
        evals=of(sweep.evals),
        updates=of(sweep.updates),
        timing=of(sweep.timing),
    )


def _told(row: Mapping[str, Any], name: str) -> str:
    """A value as text; mini-batches, which grow with the batch, as optimizer steps to a batch."""
    value = row[name]
    if name in MINI_BATCHES and isinstance(value, int | float) and value > 0:
        return f"{row['train_batch'] / value:g} to a batch"
    none = value is None or (isinstance(value, float) and math.isnan(value))
    return "none" if none else f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Candidates:
    """The arms of a plan that an advice is about, by base rate: those that learn as the reference does."""

    sweep: Sweep

    @cached_property
    def _rows(self) -> dict[str, dict[str, Any]]:
        return {str(arm): dict(row) for arm, row in self.sweep.arms.iterrows()}

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """The arms that differ from the reference in batch, rate and settings of the system alone, in plan order."""
        return tuple(arm for arm in self._rows if arm not in self.left_out)

    @cached_property
    def left_out(self) -> dict[str, str]:
        """The other arms, and why each is none: another learning-rate rule, temperature, algorithm and so on."""
        return {arm: why for arm in self._rows if (why := self._why_not(arm))}

    def _why_not(self, arm: str) -> str:
        own, asked = self._rows[arm], self._rows[self.sweep.reference_arm]
        for name in sorted(own, key=lambda name: name not in RULES):  # a rule first
            kept = name in (*BATCH_AXES, *RATE_AXES, *SYSTEM_AXES) or str(name).startswith(("execution.", "branch"))
            if kept or name == "batch.gen_batch":
                continue
            value, wanted = (_told(row, name) for row in (own, asked))
            if value != wanted:
                return f"{name} {value}, where the reference has {wanted}"
        return ""

    @cached_property
    def rates(self) -> dict[float, tuple[str, ...]]:
        """base rate -> its arms; one entry of NaN where the plan does not say the base rates of all."""
        base = {arm: base_rate(self.sweep, arm) for arm in self.kept}
        if None in base.values():
            return {math.nan: self.kept}
        found: dict[float, list[str]] = {}
        for arm, rate in base.items():
            same = next((other for other in found if math.isclose(other, rate or 0, rel_tol=SAME)), rate or 0)
            found.setdefault(same, []).append(arm)
        return {rate: tuple(arms) for rate, arms in found.items()}

    def rate_of(self, arm: str) -> float:
        """The base rate an arm belongs to."""
        return next(rate for rate, arms in self.rates.items() if arm in arms)

    def reference_at(self, rate: float) -> str | None:
        """The arm that is the reference but for its rate."""
        reference = self.sweep.reference_arm
        if reference in self.rates[rate]:
            return reference
        own = self._key(reference)
        return next((arm for arm in self.rates[rate] if self._key(arm) == own), None)

    def _key(self, arm: str) -> tuple[Any, ...]:
        row = self._rows[arm]
        rest = [str(value) for name, value in row.items() if name not in (*BATCH_AXES, *RATE_AXES)]
        return (row["num_prompts"], row["group_size"], *rest)

    def at(self, rate: float) -> tuple[tuple[Candidate, ...], str]:
        """(the candidates at a base rate, their reference)."""
        reference = self.reference_at(rate)
        if reference is None:
            raise InputError(f"the plan has no arm with the batch of {self.sweep.reference_arm} at the rate {rate:g}")
        arms: list[Candidate] = []
        first: dict[tuple[Any, ...], str] = {}
        rates: dict[tuple[Any, ...], str] = {}
        for arm in self.rates[rate]:
            row, family = self._rows[arm], self._family(arm)
            own = () if family == self._family(reference) else family
            lr = f"lr={row['lr']:.5e}"
            place = (row["num_prompts"], row["group_size"], family)
            if rates.setdefault(place, lr) != lr:
                # The same batch at another rate: nothing but its own runs says what it needs.
                own = (*own, lr)
            learns_as = first.setdefault((*place, lr), arm)
            known = float(row["lr"]) if row["lr"] > 0 else None
            arms.append(Candidate(arm, int(row["num_prompts"]), int(row["group_size"]), learns_as, own, known))
        return tuple(arms), reference

    def _family(self, arm: str) -> tuple[str, ...]:
        """What N* may depend on besides batch and rate. Where nothing is stale, the places in flight are no part."""
        row = self._rows[arm]
        mode = row.get("execution.mode", "synchronous")
        system = {*SYSTEM_AXES, *(["batch.gen_batch"] if mode == "synchronous" else [])}
        return tuple(
            f"{name}={value}"
            for name, value in row.items()
            if name not in (*BATCH_AXES, *RATE_AXES)
            and name not in system
            and (name == "execution.mode" or not str(name).startswith("execution."))
        )


def evidence_of(
    study: Study, candidates: Sequence[Candidate], branches: Mapping[str, Any], stability: Stability | None = None
) -> Evidence:
    """What a study of the candidates says, with the local ratios of its branches, and where runs of any rate break.

    Without rates a run that broke is one that is late: nothing would say that others break too.
    """
    scales, outcomes = Scales(study), Outcomes(study)
    samples = study.samples["interpolated"]
    broke = {}
    if stability is not None:
        samples = {c.arm: outcomes.samples(c.arm) for c in candidates}
        broke = {c.arm: count for c in candidates if (count := outcomes.count(c.arm, "broke"))}
    return Evidence(
        candidates=tuple(candidates),
        reference=study.reference,
        runs={c.arm: samples[c.arm] for c in candidates if samples[c.arm].size},
        branches=dict(branches),
        speed=speeds(study.clocks, [c.arm for c in candidates]),
        noise=noise_of(scales),
        budget_samples=budget if (budget := float(study.sweep.trials["budget_samples"].max())) > 0 else math.inf,
        broke=broke,
        stability=stability,
    )


def noise_of(scales: Scales) -> Noise | None:
    """The noise scale of the reference's own runs; None where it cannot be estimated."""
    found = scales.noise_scale().interval
    if not found.estimate or found.estimate <= 0:
        return None
    sd = LONE_NOISE_SD
    if found.low is not None:
        sd = UNBOUNDED_NOISE_SD
        if found.low > 0 and found.high is not None:
            sd = min(sd, math.log(found.high / found.low) / 3.92)
    groups = Groups(scales)
    between, within = (groups.trace(part).estimate for part in ("between", "within"))
    share = None
    if between is not None and within is not None:
        total = groups.group_size[scales.study.reference] * between + within
        share = float(np.clip(groups.group_size[scales.study.reference] * between / total, 0, 1)) if total > 0 else None
    return Noise(math.log(found.estimate), sd, share)


def speeds(clocks: Mapping[Any, Clock], arms: Sequence[str]) -> dict[str, Speed]:
    """log q of every arm that a clock measured, from the first clock that measured the most of them.

    The error of an arm's mean is the spread between repetitions, pooled over arms, in the timing pass without what a
    round has in common.
    """
    best = max(clocks.values(), key=lambda clock: sum(arm in clock.logs for arm in arms), default=None)
    known = [arm for arm in arms if best is not None and arm in best.logs]
    if best is None or not known:
        return {}
    table = pd.DataFrame({arm: best.logs[arm] for arm in known})
    # What is common to a round is taken out where some rounds did not measure every arm.
    shared = table.sub(table.mean(axis=0), axis=1).mean(axis=1) if best.source == "timing" else 0.0
    log_q = table.sub(shared, axis=0).mean(axis=0) if best.source == "timing" else table.mean(axis=0)
    spread, found = best.spread(known), {}
    for arm in known:
        repeats = int(table[arm].notna().sum())
        means = best.means(arm)
        shares = [
            (means[f"{phase}_s_per_sample"] or math.nan) * math.exp(log_q[arm]) for phase in ("generate", "train")
        ]
        found[arm] = Speed(float(log_q[arm]), spread.sd / math.sqrt(repeats), float(spread.df), *shares)
    return found


def samples_used(folders: Sequence[Sweep]) -> tuple[int, float]:
    """(responses trained on, seconds of the trials one after the other) of everything that was run."""
    samples = sum(
        int((sweep.trials["samples_trained"] - _first_samples(sweep)).clip(lower=0).sum()) for sweep in folders
    )
    seconds = sum(float(sweep.updates.groupby("trial_id")["wall_s"].max().sum()) for sweep in folders)
    return samples, seconds


def _first_samples(sweep: Sweep) -> pd.Series:
    """Where each trial starts: at 0, but for branches."""
    told = {t.trial_id: number(t.configured("branch", "at_samples")) for t in sweep.plan.trials}
    return sweep.trials.index.to_series().map(told).fillna(0.0)


def folder_beside(path: Path, name: str | None) -> Path | None:
    """The folder of another sweep of the same results, where it has a plan."""
    if name is None:
        return None
    folder = path.resolve().parent / name
    return folder if (folder / "plan.json").is_file() else None
