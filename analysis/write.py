"""Writes a report's folder: report.json, tables, figures and one page that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.critical_words import closed_form_sentence, critical_rows
from analysis.figures import draw_all
from analysis.findings_words import trace_digits
from analysis.growth_words import growth_rows
from analysis.load import Sweep
from analysis.page import images, keep_other_target, replace_file, template
from analysis.profile_figure import draw_profile
from analysis.results import analyse
from analysis.series import OF_LEARNING, series_names
from analysis.target_words import target_rows, target_sentence
from analysis.words import captions


def write_report(sweep: Sweep) -> tuple[dict[str, Any], list[Path]]:
    """Analyse the sweep and write <sweep>/report. Returns report.json's content and the paths written.

    A report that is there for another target is kept beside it, as <sweep>/report_target_<its target>.
    """
    results = analyse(sweep)
    report, tables = results.report, results.tables
    folder = sweep.path / "report"
    kept = keep_other_target(folder / "report.json", sweep.target)
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_csv(folder / "tables" / f"{name}.csv", index=False)
    figures = draw_all(report, tables, folder / "figures")
    if report["profile"]:
        figures.append(draw_profile(sweep.path, folder / "figures"))
    page, data = folder / "report.html", folder / "report.json"
    replace_file(page, render_page(report, figures))
    replace_file(data, json.dumps(report, indent=1, allow_nan=False) + "\n")
    return report, [page, data, folder / "tables", folder / "figures", *kept]


def render_page(report: Mapping[str, Any], figures: list[Path]) -> str:
    """report.html: all styles and images are inside it, so it opens anywhere without a network."""
    clock = {arm["throughput"]["source"] for arm in report["arms"]} - {None}
    named = {"timing": "timing pass, arms interleaved", "records": "records of the trials"}
    series = series_names(report["arms"], "train_batch", without=OF_LEARNING)
    page: str = template("report.html.j2").render(
        report=report,
        series=dict(zip((arm["arm"] for arm in report["arms"]), series, strict=True)),
        arms=sorted(report["arms"], key=lambda arm: (arm["train_batch"], arm["lr_rule"])),
        figures=images(figures, captions(report)),
        critical=critical_rows(report),
        closed_form=closed_form_sentence(report),
        targets=target_rows(report),
        target_sentence=target_sentence(report),
        digits=trace_digits(report["groups"]),
        growth=growth_rows(report["growth"]),
        milli=milli,
        percent=lambda share: "-" if share is None else f"{share:.1%}",
        clock=" and the ".join(named[source] for source in sorted(clock, reverse=True)) or "nothing: it is not known",
    )
    return page


def milli(value: Mapping[str, Any]) -> dict[str, Any]:
    """An interval in thousandths."""
    middle, low, high = (None if x is None else 1000 * x for x in (value["estimate"], *value["ci95"]))
    return {"estimate": middle, "ci95": [low, high]}
