"""What `analysis report` prints: the answer, one line per arm, and where the rest is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from analysis.words import interval


def plain_console() -> Console:
    """Shows names as they are (no markup, no emoji codes), and is not cut to a terminal's width when there is none."""
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    console = Console(**plain)
    return console if console.is_terminal else Console(**plain, width=140)


def print_report(report: Mapping[str, Any], paths: Sequence[Path]) -> None:
    """Print to standard output."""
    console = plain_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("arm", "B", "seeds", "N*", "r_N", "r_q", "r_T", "aligned", "verdict"):
        table.add_column(name, justify="left" if name in ("arm", "aligned", "verdict") else "right", no_wrap=True)
    for arm in sorted(report["arms"], key=lambda arm: (arm["train_batch"], arm["lr_rule"])):
        table.add_row(
            arm["arm"],
            f"{arm['train_batch']:,}",
            f"{arm['num_seeds'] - arm['num_censored']}/{arm['num_seeds']}",
            interval(arm["samples_to_target"], 0).split(" ")[0] if arm["num_censored"] == 0 else "> budget",
            interval(arm["r_N"]),
            "-" if arm["r_q"] is None else f"{arm['r_q']:.2f}",
            interval(arm["r_T"]),
            {True: "yes", False: "not shown", None: "-"}[arm["aligned"]],
            arm["verdict"].replace("_", " "),
        )
    console.print(table)
    console.print()
    for sentence in [*report["headline"], *report["warnings"]]:
        console.print(sentence, soft_wrap=True)
    console.print()
    for path in paths:
        console.print(str(path), soft_wrap=True)
