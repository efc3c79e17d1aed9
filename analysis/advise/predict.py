"""How well r_N was predicted: from the noise scale alone, from branches, from both, beside what a judge measured."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.advise.advice import Advice
from analysis.advise.branches import local_ratios
from analysis.advise.evidence import Evidence
from analysis.advise.judge import key_of, load_judge
from analysis.advise.model import Posterior, posterior
from analysis.penalty import LogSample


def prediction_table(advice: Advice, folder: Path) -> pd.DataFrame:
    """A row per candidate and source: predicted r_N with its interval, the judge's, log(predicted / measured).

    source: noise, branches (of each way to treat the moments), both. Runs of other arms than the reference are no part.
    """
    judging = load_judge(folder, advice)
    evidence = advice.evidence
    reference_runs = {arm: run for arm, run in evidence.runs.items() if arm == advice.reference}
    alone = replace(evidence, runs=reference_runs, branches={})
    rows: list[dict[str, Any]] = []
    moments = list(dict.fromkeys(branch.moments for branch in advice.branches))
    sources = {"noise": alone} if evidence.noise else {}
    for kind in moments:
        local = local_ratios(advice.branches, kind)
        sources[f"branches, {kind}"] = replace(alone, noise=None, branches=local)
        if evidence.noise:
            sources[f"both, {kind}"] = replace(alone, branches=local)
    reference = judging.arms.get(key_of(advice.own.arms.loc[advice.reference]))
    samples = judging.study.samples["interpolated"]
    for source, known in sources.items():
        post = posterior(known)
        for arm in _predicted(known, source.startswith("branches")):
            measured = judging.arms.get(key_of(advice.own.arms.loc[arm]))
            if measured is not None and reference is not None:
                rows.append(_row(post, known, source, arm, samples[measured], samples[reference]))
    return pd.DataFrame(rows)


def _predicted(evidence: Evidence, by_branches: bool) -> list[str]:
    """The arms that a source says something of, by batch."""
    arms = [
        c
        for c in evidence.candidates
        if c.arm != evidence.reference and (c.arm in evidence.branches or not by_branches)
    ]
    return [c.arm for c in sorted(arms, key=lambda c: c.train_batch)]


def _row(
    post: Posterior, evidence: Evidence, source: str, arm: str, measured: LogSample, reference: LogSample
) -> dict[str, Any]:
    learner = evidence.of(arm).learns_as
    mean, sd = post.moments(post.contrast(learner, evidence.of(evidence.reference).learns_as))
    known = measured.complete and reference.complete
    r_N = math.exp(float(measured.values.mean() - reference.values.mean())) if known else None
    local = evidence.branches.get(arm)
    return {
        "source": source,
        "arm": arm,
        "train_batch": evidence.of(arm).train_batch,
        "predicted": math.exp(mean),
        "low": math.exp(mean - 1.96 * sd),
        "high": math.exp(mean + 1.96 * sd),
        "branch": math.exp(local.log_r_N) if local and not local.beyond else None,
        "measured": r_N,
        "log_error": mean - math.log(r_N) if r_N else None,
    }


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Root mean square and mean of the log error by source, over the arms that all sources predict."""
    known = table.dropna(subset=["log_error"])
    if known.empty:
        return pd.DataFrame(columns=["source", "arms", "rms_log_error", "mean_log_error", "within_interval"])
    shared = known.groupby("arm")["source"].nunique()
    of_all = known[known["arm"].isin(shared.index[shared == known["source"].nunique()])]
    rows = []
    for source, own in of_all.groupby("source", sort=False):
        inside = (own["low"] <= own["measured"]) & (own["measured"] <= own["high"])
        error = own["log_error"].astype(float)
        rows.append(
            {
                "source": source,
                "arms": len(own),
                "rms_log_error": float(np.sqrt((error**2).mean())),
                "mean_log_error": float(error.mean()),
                "within_interval": float(inside.mean()),
            }
        )
    return pd.DataFrame(rows)
