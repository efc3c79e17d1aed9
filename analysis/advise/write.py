"""Writes the folder of an advice: advice.json, tables, figures and one page that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.advise.advice import Advice
from analysis.advise.content import build_advice
from analysis.advise.figures import draw_advice
from analysis.advise.words import change_sentence, headline, percent, proposal, sentences
from analysis.page import images, keep_other_target, replace_file, template

CAPTIONS = (
    (
        "Samples to the target",
        "r_N of each candidate by source, with 95% intervals; arrows are lower bounds. Noise scale and branches say "
        "it before anything is run in full.",
    ),
    (
        "Time to the target",
        "r_T with 95% intervals. Green band: within the tolerance of the batch advised.",
    ),
)


def write_advice(advice: Advice) -> tuple[dict[str, Any], list[Path]]:
    """Write <sweep>/advice. Returns advice.json's content and the paths written.

    An advice that is there for another target is kept beside it, as <sweep>/advice_target_<its target>.
    """
    content = build_advice(advice)
    content |= {"headline": headline(content), "sentences": sentences(content)}
    folder = advice.sweep.path / "advice"
    kept = keep_other_target(folder / "advice.json", advice.sweep.target)
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    for name, table in tables(content).items():
        table.to_csv(folder / "tables" / f"{name}.csv", index=False)
    figures = draw_advice(content, folder / "figures")
    page, data = folder / "report.html", folder / "advice.json"
    replace_file(page, render_page(content, figures))
    # Last: who waits for the answer finds the rest of it there.
    replace_file(data, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return content, [page, data, folder / "tables", folder / "figures", *kept]


def tables(content: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """One frame per CSV: arms, branches, checks, rates, next."""
    return {
        "arms": pd.DataFrame([flat(arm) for arm in content["arms"]]),
        "branches": pd.DataFrame(content["branches"]),
        "checks": pd.DataFrame(
            [
                {"check": check["name"], "arm": arm, "z": z, "p_of_check": check["p"]}
                for check in content["checks"]
                for arm, z in check["z"].items()
            ]
        ),
        "rates": pd.DataFrame(content["rate"]["grid"]),
        "changes": pd.DataFrame(content["changes"]),
    }


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Intervals as three columns, lists as text."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and "ci95" in value:
            found |= {name: value["estimate"], f"{name}_low": value["ci95"][0], f"{name}_high": value["ci95"][1]}
        else:
            found[name] = " ".join(map(str, value)) if isinstance(value, list) else value
    return found


def render_page(content: Mapping[str, Any], figures: list[Path]) -> str:
    """report.html: all styles and images are inside it."""
    changes = [change_sentence(change) for change in content["changes"]]
    items = [proposal(item) for item in content["next"]]
    return template("advise.html.j2").render(
        content=content, figures=images(figures, CAPTIONS), changes=changes, next=items, percent=percent
    )
