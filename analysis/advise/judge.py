"""Was the advice right? The advised arm in a sweep whose trials the advice never saw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.advise.advice import Advice
from analysis.advise.branches import arm_key
from analysis.advise.decide import NUM_DRAWS
from analysis.advise.read import Candidates, samples_used, speeds
from analysis.errors import InputError
from analysis.load import load_sweep
from analysis.penalty import Interval
from analysis.plain import interval_json, plain
from analysis.study import Study


@dataclass(frozen=True)
class Judge:
    """The study that judges, with the arm of each key (P, G, lr, rule, algorithm)."""

    study: Study
    arms: dict[tuple[Any, ...], str]


def load_judge(folder: Path, advice: Advice) -> Judge:
    """The judge, at the advice's target. Raises InputError where it shares seeds with the advice."""
    sweep = load_sweep(folder, advice.sweep.target)
    if sweep.metric != advice.sweep.metric:
        raise InputError(f"{folder}: its metric is {sweep.metric}, needed is the advice's, {advice.sweep.metric}")
    shared = sorted(set(advice.sweep.finished["seed"]) & set(sweep.finished["seed"]))
    if shared:
        shown = ", ".join(map(str, shared[:5]))
        raise InputError(f"{folder}: the advice has seen its seeds {shown}; needed are seeds that it has not")
    return Judge(Study(sweep), {key_of(sweep.arms.loc[arm]): arm for arm in Candidates(sweep).kept})


def key_of(axes: Any) -> tuple[Any, ...]:
    """What an arm is, wherever it is: P, G, its rate and rule, the algorithm."""
    row = dict(axes)
    return (*arm_key(row), row["lr_rule"], row["algorithm"])


def judge(advice: Advice, folder: Path) -> dict[str, Any]:
    """The regret of the advised arm: r_T over the least r_T of the arms of the judge that were candidates."""
    judging, decision = load_judge(folder, advice), advice.decision
    if decision.advised is None:
        raise InputError(f"{advice.sweep.path}: there is no advice to judge yet")
    keys = {candidate.arm: key_of(advice.own.arms.loc[candidate.arm]) for candidate in advice.arms}
    matched = {arm: judging.arms[key] for arm, key in keys.items() if key in judging.arms}
    if decision.advised not in matched:
        raise InputError(f"{folder}: no arm has the batch, rate and rule of {decision.advised}, which is advised")
    names = list(dict.fromkeys(matched.values()))
    log_T = _draws(judging.study, names)
    place = names.index(matched[decision.advised])
    if not math.isfinite(float(log_T[0, place])):
        raise InputError(f"{folder}: {names[place]} has no run at the target, or no speed")
    plain_T = {name: _plain(judging.study, name) for name in names}
    best = min(plain_T, key=plain_T.__getitem__)
    regret_D = log_T[:, place] - log_T.min(axis=1)
    low, high = np.exp(np.quantile(regret_D, [0.025, 0.975])).tolist()
    planned = sum(float(t.configured("budget_samples") or 0) for t in judging.study.sweep.plan.trials)
    spent, _ = samples_used(advice.everything)
    found = {
        "format": 1,
        "judge": judging.study.sweep.name,
        "advised": matched[decision.advised],
        "best": best,
        "regret": interval_json(Interval(math.exp(plain_T[matched[decision.advised]] - plain_T[best]), low, high)),
        "within_tolerance_probability": float(np.mean(regret_D <= math.log1p(advice.settings.tolerance))),
        "seeds": {name: judging.study.samples["interpolated"][name].size for name in names},
        "not_judged": [arm for arm in keys if arm not in matched],
        "samples": spent,
        "judge_plan_samples": planned,
        "share": spent / planned if planned else None,
        "r_T": {name: interval_json(judging.study.r_T(name)) for name in names},
    }
    content: dict[str, Any] = plain(found)
    return content


def _plain(study: Study, arm: str) -> float:
    """log T of the estimates; infinite where a seed missed the target or no speed is known."""
    sample, clock = study.samples["interpolated"][arm], study.clock(arm)
    rate = clock.means(arm)["samples_per_s"] if clock else None
    return float(sample.values.mean()) - math.log(rate) if sample.complete and rate else math.inf


def _draws(study: Study, names: list[str]) -> np.ndarray:
    """Draws of log T by arm: means of log N* with Student's t, and of log q; infinite where one is not known.

    An arm of which seeds missed the target counts with their bounds: it is no faster than that.
    """
    rng, spread = np.random.default_rng(2), study.spread
    speed = speeds(study.clocks, names)
    t_DA = rng.standard_normal((NUM_DRAWS, len(names)))
    # One spread for all arms: one chi-square a draw.
    scale_D = np.sqrt(rng.chisquare(spread.df, NUM_DRAWS) / spread.df) if spread.df else np.ones(NUM_DRAWS)
    found = np.full((NUM_DRAWS, len(names)), math.inf)
    for place, name in enumerate(names):
        sample = study.samples["interpolated"][name]
        if not sample.size or name not in speed or not len(sample.values):
            continue
        mean = float(np.concatenate([sample.values, sample.bounds]).mean())
        error = spread.sd / math.sqrt(sample.size) * t_DA[:, place] / scale_D
        clock = speed[name].log_q + speed[name].sd * rng.standard_normal(NUM_DRAWS)
        found[:, place] = mean + error - clock
    return found


def judge_sentence(found: dict[str, Any]) -> str:
    """What the judge says, in one sentence."""
    regret = found["regret"]
    low, high = regret["ci95"]
    share = "" if found["share"] is None else f"; the advice took {found['share']:.1%} of the judge's samples"
    best = "it is the fastest there" if found["best"] == found["advised"] else f"the fastest there is {found['best']}"
    if regret["estimate"] is None:
        told = f"not every run of {found['advised']} reaches the target there, so its time is a bound"
        return f"Judged by {found['judge']}: {told}{share}."
    return (
        f"Judged by {found['judge']}: {found['advised']} takes {regret['estimate']:.3f} ({low:.3f} to {high:.3f}) of "
        f"the time of the fastest ({best}){share}."
    )
