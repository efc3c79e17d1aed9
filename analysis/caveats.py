"""What a reader of a report has to know about the data behind it, one sentence each."""

from __future__ import annotations

import numpy as np
from scipy.stats import bartlett

from analysis.record_caveats import record_caveats, some
from analysis.study import Study


def errors_of(study: Study) -> list[str]:
    """What is wrong with the input, and what is left out because of it: such a report is not the whole study's."""
    trials, found = study.sweep.trials, []
    for trial_id, reason in trials.loc[trials["status"] == "duplicate", "reason"].items():
        found.append(f"{trial_id} is {reason}: it is left out; take one of them out of the plan.")
    for copy, original in study.copies.items():
        text = f"{original} and {copy} have identical curves: the seed reached nothing, so they are one trial, not two"
        found.append(f"{text}; {copy} is left out, run it again with a seed that counts.")
    return found


def caveats_of(study: Study) -> list[str]:
    """The sentences that apply, most serious first."""
    return [
        *(text for check in CHECKS for text in check(study)),
        *record_caveats(study.sweep),
        *(f"Assumed: {text}" for text in study.sweep.assumptions),
    ]


def _learning(study: Study) -> list[str]:
    if study.learning:
        return []
    return ["The scores show no learning in any arm: curves that lie on one another say nothing about the batch."]


def _reference(study: Study) -> list[str]:
    sample = study.samples["interpolated"][study.reference]
    if not study.groups[study.reference]:
        return [f"The reference arm {study.reference} has no finished trial: r_N, r_T and verdicts are left out."]
    if not sample.size:
        return [f"The reference arm {study.reference} is at the target before training: r_N is undefined."]
    if not sample.complete:
        missing = f"{len(sample.bounds)} of {sample.size} seeds"
        return [f"The reference arm {study.reference} misses the target in {missing}: r_N has no lower limit."]
    return []


def _missing(study: Study) -> list[str]:
    arms = [arm for arm, curves in study.groups.items() if not curves and arm != study.reference]
    return [f"Planned but without a finished trial, so without results: {some(arms)}."] if arms else []


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


def _commits(study: Study) -> list[str]:
    number = study.sweep.trials["commit"].nunique()
    return [f"The trials come from {number} commits of the code."] if number > 1 else []


CHECKS = (_learning, _reference, _missing, _diverged, _replicates, _clock, _spread, _commits)
