"""What a reader of a report has to know about the data behind it, one sentence each."""

from __future__ import annotations

import numpy as np
from scipy.stats import bartlett

from analysis.study import Study


def caveats_of(study: Study) -> list[str]:
    """The sentences that apply, most serious first."""
    return [
        text
        for check in (_learning, _reference, _diverged, _replicates, _clock, _spread, _files)
        for text in check(study)
    ]


def _learning(study: Study) -> list[str]:
    if study.learning:
        return []
    return ["The scores show no learning in any arm: curves that lie on one another say nothing about the batch."]


def _reference(study: Study) -> list[str]:
    sample = study.samples["interpolated"][study.reference]
    if not sample.size:
        return [f"The reference arm {study.reference} has no N*: r_N is undefined."]
    if not sample.complete:
        missing = f"{len(sample.bounds)} of {sample.size} seeds"
        return [f"The reference arm {study.reference} misses the target in {missing}: r_N has no lower limit."]
    return []


def _diverged(study: Study) -> list[str]:
    trials = study.sweep.trials
    counts = trials.loc[trials["status"] == "diverged", "arm"].value_counts()
    if counts.empty:
        return []
    parts = ", ".join(f"{count} of {arm}" for arm, count in counts.items())
    return [f"Trials that diverged count with what they recorded before: {parts}. Such an arm is not safe to use."]


def _replicates(study: Study) -> list[str]:
    counts = {arm: len(curves) for arm, curves in study.groups.items()}
    if study.spread.df == 0 and any(counts.values()):
        why = "There is one seed per arm" if max(counts.values()) == 1 else "No arm has two seeds that reach the target"
        return [f"{why}: estimates have no intervals, and no verdict is possible."]
    few = [arm for arm, count in counts.items() if 0 < count < max(counts.values())]
    return [f"Fewer seeds than the other arms have: {', '.join(few)}."] if few else []


def _clock(study: Study) -> list[str]:
    if not study.clocks:
        return ["No seconds were recorded: q, r_q and r_T are unknown."]
    if "timing" not in study.clocks:
        text = "There is no timing pass: r_q comes from the records of trials that may have shared the machine."
        return [text]
    fallback = [arm for arm in study.arms if (clock := study.clock(arm)) and clock.source == "records"]
    return [f"Not in the timing pass, r_q from the records instead: {', '.join(fallback)}."] if fallback else []


def _spread(study: Study) -> list[str]:
    """Bartlett's test at 1%: pooling assumes that the spread over seeds is about the same in every arm."""
    complete = [s.values for s in study.samples["interpolated"].values() if s.complete and len(s.values) > 1]
    deviations = [float(values.std(ddof=1)) for values in complete]
    if len(complete) < 2 or min(deviations) == 0 or bartlett(*complete).pvalue >= 0.01:
        return []
    low, high = (f"{100 * np.expm1(sd):.0f}%" for sd in (min(deviations), max(deviations)))
    return [f"The spread of N* over seeds differs between arms ({low} to {high}); the pooled intervals average it."]


def _files(study: Study) -> list[str]:
    trials = study.sweep.trials
    found = []
    bad, superseded = int(trials["num_bad_lines"].sum()), int(trials["num_superseded"].sum())
    if bad:
        where = ", ".join(trials.index[trials["num_bad_lines"] > 0])
        found.append(f"{bad} damaged lines of metrics.jsonl were skipped, in {where}.")
    if superseded:
        found.append(f"{superseded} records were made again by a resumed attempt; the later ones count.")
    if trials["commit"].nunique() > 1:
        found.append(f"The trials come from {trials['commit'].nunique()} commits of the code.")
    return found
