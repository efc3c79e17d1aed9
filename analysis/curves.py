"""Learning curves J(N): scores over samples_trained, their common grids, distances and whether anything was learned."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import t as student

from analysis.errors import InputError
from analysis.load import Sweep, records_of
from analysis.penalty import LogSample, pooled_spread


@dataclass(frozen=True)
class Curve:
    """The K >= 1 evaluations of one trial: samples_K (strictly increasing, responses) and scores_K (finite)."""

    samples_K: np.ndarray
    scores_K: np.ndarray

    def at(self, grid_M: np.ndarray) -> np.ndarray:
        """Scores on a grid, linear between evaluations, shape [M]."""
        return np.interp(grid_M, self.samples_K, self.scores_K)


def curves_of(sweep: Sweep) -> dict[str, Curve]:
    """The curve of the target metric of every finished trial that has one, by trial_id, in plan order."""
    if sweep.metric not in sweep.evals:
        known = sorted(set(sweep.evals.columns[sweep.evals.columns.str.startswith("eval/")]))
        held = f"its evaluation records hold {', '.join(known)}" if known else "it has no evaluation records yet"
        raise InputError(f"{sweep.path} has no metric {sweep.metric!r} to reach the target with: {held}")
    scored, found = sweep.evals.dropna(subset=[sweep.metric]), {}
    if scored.empty:
        raise InputError(f"{sweep.path} holds no number for the metric {sweep.metric!r} in any evaluation record")
    for trial_id, rows in records_of(scored):
        found[trial_id] = Curve(rows["samples_trained"].to_numpy(), rows[sweep.metric].to_numpy())
    return {trial_id: found[trial_id] for trial_id in sweep.finished.index if trial_id in found}


def by_arm(sweep: Sweep, curves: Mapping[str, Curve]) -> dict[str, list[Curve]]:
    """The curves of each arm in seed order; an arm without finished trials has an empty list."""
    arms: dict[str, list[Curve]] = {arm: [] for arm in sweep.arms.index}
    for trial_id, arm in sweep.trials.sort_values("seed")["arm"].items():
        if trial_id in curves:
            arms[arm].append(curves[str(trial_id)])
    return arms


def copies_of(sweep: Sweep, curves: Mapping[str, Curve]) -> dict[str, str]:
    """Of two seeds of an arm with the same curve the later one, with the trial that it is a copy of.

    Their seed reached nothing: counted twice they would make intervals narrow. They are the same where all evaluations
    that both have agree, the last one or two aside (the one was stopped or went wrong there). A constant curve proves
    nothing, and one of few values may repeat by chance: then the train metrics decide.
    """
    found: dict[str, str] = {}
    for _, trials in sweep.trials.loc[list(curves)].groupby("arm", sort=False):
        for first, second in itertools.combinations(trials.index, 2):
            if first not in found and second not in found:
                num_values = _values_shared(curves[first], curves[second])
                if num_values > 3 or (num_values > 1 and _same_updates(sweep.updates, first, second)):
                    found[second] = first
    return found


def _values_shared(a: Curve, b: Curve) -> int:
    """The different scores of a stretch that two curves share but for its end; 0 where they do not share one."""
    size = _shared(np.column_stack([a.samples_K, a.scores_K]), np.column_stack([b.samples_K, b.scores_K]))
    return len(np.unique(a.scores_K[:size]))


def _same_updates(updates: pd.DataFrame, first: str, second: str) -> bool:
    """Whether two trials recorded the same metrics, or none."""
    names = [name for name in updates.columns if "/" in name]
    a, b = (updates.loc[updates["trial_id"] == trial_id, names].to_numpy(dtype=float) for trial_id in (first, second))
    return len(a) == len(b) == 0 or _shared(a, b) > 0


def _shared(a_RC: np.ndarray, b_RC: np.ndarray) -> int:
    """The rows that two tables share: all of them, or all that both have but the last; else 0."""
    size = min(len(a_RC), len(b_RC))
    if len(a_RC) != len(b_RC) or not np.array_equal(a_RC, b_RC, equal_nan=True):
        size -= 1
    return size if size > 0 and np.array_equal(a_RC[:size], b_RC[:size], equal_nan=True) else 0


def grid_spacing(curve: Curve) -> float:
    """The median distance of a curve's evaluations, in samples; 0 for a single one."""
    return float(np.median(np.diff(curve.samples_K))) if len(curve.samples_K) > 1 else 0.0


def thin(curve: Curve, spacing: float) -> Curve:
    """The curve as if evaluated at the first of its points at or after each multiple of `spacing`.

    >>> curve = Curve(np.arange(0.0, 9.0), np.arange(0.0, 9.0))
    >>> thin(curve, 4.0).samples_K.tolist(), thin(curve, 2.5).samples_K.tolist()
    ([0.0, 4.0, 8.0], [0.0, 3.0, 5.0, 8.0])
    """
    if spacing <= 0:
        return curve
    multiples = np.arange(0.0, curve.samples_K[-1] + spacing / 2, spacing)
    kept = np.unique(np.searchsorted(curve.samples_K, multiples))
    kept = kept[kept < len(curve.samples_K)]
    return Curve(curve.samples_K[kept], curve.scores_K[kept])


def common_grid(groups: Sequence[Sequence[Curve]]) -> np.ndarray:
    """The evaluation points of the coarsest curve that lie where every curve has data, shape [M]."""
    curves = [curve for group in groups for curve in group]
    coarsest = max(curves, key=grid_spacing)
    low = max(curve.samples_K[0] for curve in curves)
    high = min(curve.samples_K[-1] for curve in curves)
    inside = (coarsest.samples_K >= low) & (coarsest.samples_K <= high)
    return coarsest.samples_K[inside]


def mean_and_sd(curves: Sequence[Curve], grid_M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (n - 1) over seeds on a grid, each [M]; sd is 0 for one seed."""
    scores_SM = np.stack([curve.at(grid_M) for curve in curves])
    sd_M = scores_SM.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(grid_M))
    return scores_SM.mean(axis=0), sd_M


def shows_learning(groups: Sequence[Sequence[Curve]], level: float = 0.99) -> bool:
    """Whether the scores of at least one arm rise: flat curves lie on one another without saying anything.

    A trial's rise is the mean of its last third of evaluations less that of its first third. One-sided t of each arm's
    mean rise with the spread pooled over arms, Bonferroni over arms; with one seed an arm, any rise.
    """
    rises = [np.array([_rise(curve) for curve in group]) for group in groups if group]
    if not rises or all((values <= 0).all() for values in rises):
        return False
    spread = pooled_spread([LogSample(values) for values in rises])
    if spread.df == 0:
        return True
    quantile = float(student.ppf(1 - (1 - level) / len(rises), spread.df))
    return any(values.mean() > quantile * spread.sd / math.sqrt(len(values)) for values in rises)


def _rise(curve: Curve) -> float:
    third = max(len(curve.scores_K) // 3, 1)
    return float(curve.scores_K[-third:].mean() - curve.scores_K[:third].mean())
