"""The whole analysis of a sweep in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.critical_words import regime_sentences
from analysis.errors import InputError
from analysis.findings_words import finding_sentences
from analysis.load import Sweep
from analysis.report import build_report
from analysis.scales import Scales
from analysis.staleness_words import staleness_sentences
from analysis.study import Study
from analysis.tables import build_tables
from analysis.target_words import target_headline
from analysis.words import headline


@dataclass(frozen=True)
class Results:
    """What the analysis of a sweep found.

    report: the content of report.json. tables: one frame per CSV, by name: arms (one row per arm with N*, r_N, r_q, r_T
    and their limits), seeds (N* of each trial), curves (J(N) by arm), distances (J(N) less the reference's with its
    band), targets (r_N at other targets), critical (every way to a critical batch), fit, prediction, gradients, groups,
    cadence, reach (how far each way of growing the batch carries), throughput, growth (how time grows with the batch,
    beside the published), roles (what engine and trainer did of the time), staleness (how old the tokens of each arm
    were, where arms stream), excluded.
    """

    report: dict[str, Any]
    tables: dict[str, pd.DataFrame]


def analyse(sweep: Sweep) -> Results:
    """N*, r_N, q, r_T, alignment, verdicts and critical batches of a sweep at its target.

    Raises InputError when no trial has finished, the target metric is not recorded, or two seeds of an arm are
    copies of one another.
    """
    if sweep.finished.empty:
        states = ", ".join(f"{count} {status}" for status, count in sweep.trials["status"].value_counts().items())
        raise InputError(
            f"no trial of the sweep {sweep.name} has finished yet ({states}); run the sweep on, then report"
        )
    study = Study(sweep)
    scales = Scales(study)
    report = build_report(study, scales)
    more = [*target_headline(report), *regime_sentences(report), *finding_sentences(report)]
    more += staleness_sentences(report)
    report["headline"] = headline(report, more)
    return Results(report, build_tables(report, study, scales))
