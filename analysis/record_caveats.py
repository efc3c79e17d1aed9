"""What the records themselves make a reader doubt: holes, steps back, other units, other scales, skipped lines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.load import Sweep, records_of

MOST_NAMES = 4


def record_caveats(sweep: Sweep) -> list[str]:
    """The sentences that apply to a sweep's files, most serious first."""
    return [
        text for check in (_units, _scale, _holes, _ends, _unscored, _back, _lines, _rates) for text in check(sweep)
    ]


def some(names: Sequence[str]) -> str:
    """A few names and how many more there are.

    >>> some(["a", "b"]), some(list("abcdefg"))
    ('a and b', 'a, b, c, d and 3 more')
    """
    shown, more = list(names[:MOST_NAMES]), len(names) - MOST_NAMES
    if more > 0:
        return f"{', '.join(shown)} and {more} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def counted(number: int, noun: str) -> str:
    """A count with its noun.

    >>> counted(1, "line"), counted(1200, "line")
    ('1 line', '1,200 lines')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _units(sweep: Sweep) -> list[str]:
    """Where updates count other samples than the plan's B, the records may count prompts, or several updates."""
    whole = sweep.updates[~(sweep.updates["samples_dropped"] > 0)]
    counted = whole.groupby("arm", sort=False)["samples"].median()
    found = []
    for arm, axes in sweep.arms.iterrows():
        samples, batch = counted.get(arm, np.nan), int(axes["train_batch"])
        if abs(samples - batch) > 0.1 * batch:
            why = " (prompts counted as samples?)" if samples == axes["num_prompts"] else ""
            found.append(f"an update of {arm} trains on {samples:,.0f} samples where the plan says B = {batch:,}{why}")
    return [f"N, r_N and q are only as right as the counts: {'; '.join(found[:3])}."] if found else []


def _scale(sweep: Sweep) -> list[str]:
    scores = sweep.evals.dropna(subset=[sweep.metric]) if sweep.metric in sweep.evals else sweep.evals[:0]
    outside = scores[~scores[sweep.metric].between(0, 1)] if len(scores) else scores
    if outside.empty:
        return []
    low, high = outside[sweep.metric].min(), outside[sweep.metric].max()
    where = some(list(outside["trial_id"].unique()))
    text = f"{sweep.metric} lies outside [0, 1] in {len(outside):,} of {len(scores):,} evaluations, from {low:g} to "
    return [f"{text}{high:g}, in {where}: right for a score of another kind, wrong for a share of right answers."]


def _holes(sweep: Sweep) -> list[str]:
    """Stretches without an evaluation that are longer than the trial's usual one by more than an update."""
    found = []
    for trial_id, low, high in holes(sweep):
        found.append(f"{trial_id} between {low:,.0f} and {high:,.0f} samples")
    return (
        [f"Evaluations are missing in {some(found)}: an N* in such a hole is interpolated across it."] if found else []
    )


def holes(sweep: Sweep) -> list[tuple[str, float, float]]:
    """(trial, last evaluation before, first after) of each stretch without an evaluation of the target metric.

    An evaluation falls on the first update boundary after a multiple of the spacing, so two of them are less than
    spacing + B apart. The spacing is the trial's median one.
    """
    found = []
    scored = sweep.evals.dropna(subset=[sweep.metric]) if sweep.metric in sweep.evals else sweep.evals[:0]
    for trial_id, rows in records_of(scored):
        samples_K = rows["samples_trained"].to_numpy()
        steps_K = np.diff(samples_K)
        if len(steps_K):
            widest = 1.01 * (np.median(steps_K) + sweep.arms.loc[rows["arm"].iloc[0], "train_batch"])
            found += [(trial_id, samples_K[k], samples_K[k + 1]) for k in np.flatnonzero(steps_K > widest)]
    return found


def _ends(sweep: Sweep) -> list[str]:
    """Completed trials whose records end long before the budget, and were not to end well past the target."""
    may_stop = {t.trial_id for t in sweep.plan.trials if t.configured("stop_past_target_frac") is not None}
    trials = sweep.trials[(sweep.trials["status"] == "completed") & ~sweep.trials.index.isin(may_stop)]
    short = trials[trials["samples_trained"] < 0.9 * trials["budget_samples"]]
    if short.empty:
        return []
    text = f"The records of {some(list(short.index))} end before the budget although the trial completed"
    return [f"{text}: what they do not reach by then is a bound there."]


def _unscored(sweep: Sweep) -> list[str]:
    """Evaluations without a score. An imported run has its training scores at other N than its validation."""
    if sweep.assumptions:
        return []
    finished = sweep.evals[sweep.evals["trial_id"].isin(sweep.finished.index)]
    if sweep.metric not in finished:
        return []
    missing = finished[finished[sweep.metric].isna()]
    if missing.empty:
        return []
    where = some(list(missing["trial_id"].unique()))
    return [f"Left out: {counted(len(missing), 'evaluation')} without a number for {sweep.metric}, in {where}."]


def _back(sweep: Sweep) -> list[str]:
    again = sweep.trials[sweep.trials["num_superseded"] > 0]
    if again.empty:
        return []
    records = counted(int(again["num_superseded"].sum()), "record")
    found = [f"Made again by a resumed attempt: {records}; the later ones count."]
    once = again.index[again["attempts"] == 1]
    if len(once):
        text = "samples_trained steps back although the trial had one attempt, in"
        found = [f"{found[0][:-1]} ({text} {some(list(once))})."]
    return found


def _lines(sweep: Sweep) -> list[str]:
    bad, found = sweep.trials["num_bad_lines"], []
    if bad.sum():
        where = some(list(bad.index[bad > 0]))
        found.append(f"Skipped: {counted(int(bad.sum()), 'damaged line')} of metrics.jsonl, in {where}.")
    if sweep.num_bad_timing_lines:
        lines = counted(sweep.num_bad_timing_lines, "line")
        found.append(f"Skipped: {lines} of timing.jsonl that measure no arm of the plan.")
    return found


def _rates(sweep: Sweep) -> list[str]:
    unknown = sweep.arms.index[sweep.arms["lr"].isna()]
    if not len(unknown):
        return []
    return [f"The learning rate of {some(list(unknown))} is not known: nothing here tells its effect from the batch's."]
