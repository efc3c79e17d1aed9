"""What `analysis import` prints: the runs it found, what it assumed, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from analysis.load import PHASES, Sweep, load_sweep

SECONDS = [f"{phase}_s" for phase in PHASES]


def print_import(folder: Path, num_new: int, unknown: Sequence[Path]) -> None:
    """Print the imported sweep as it lies in its folder."""
    sweep = load_sweep(folder)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=140)
    before = len(sweep.trials) - num_new
    there = f", {before} there before" if before else ""
    console.print(f"{num_new} run{'s' * (num_new != 1)} imported into {folder}{there}", soft_wrap=True)
    console.print()
    console.print(_table(sweep))
    console.print()
    console.print(f"target: {sweep.target:g} in {sweep.metric} ({sweep.target_rule})", soft_wrap=True)
    console.print(f"reference: {sweep.reference_arm}")
    console.print("assumed:")
    for sentence in sweep.assumptions:
        console.print(f"- {sentence}", soft_wrap=True)
    if unknown:
        named = ", ".join(map(str, unknown[:3])) + (", ..." if len(unknown) > 3 else "")
        console.print(
            f"- {len(unknown)} file{'s' * (len(unknown) > 1)} are no log of a known format: {named}.", soft_wrap=True
        )
    console.print()
    console.print(f"python -m analysis report {folder}", soft_wrap=True)


def _table(sweep: Sweep) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "arm", "seed", "B", "lr", "updates", "samples", "samples/s", "first score", "last"):
        table.add_column(name, justify="left" if name in ("run", "arm") else "right", no_wrap=True)
    for trial_id, trial in sweep.trials.iterrows():
        arm = sweep.arms.loc[trial["arm"]]
        updates = sweep.updates[sweep.updates["trial_id"] == trial_id]
        scores = sweep.evals.loc[sweep.evals["trial_id"] == trial_id, sweep.metric].dropna()
        table.add_row(
            str(trial_id),
            trial["arm"],
            str(trial["seed"]),
            f"{arm['train_batch']:,}",
            f"{arm['lr']:g}" if pd.notna(arm["lr"]) else "-",
            f"{len(updates):,}",
            f"{trial['samples_trained']:,}",
            _rate(updates),
            f"{scores.iloc[0]:.3f}" if len(scores) else "-",
            f"{scores.iloc[-1]:.3f}" if len(scores) else "-",
        )
    return table


def _rate(updates: pd.DataFrame) -> str:
    """Samples a second over the updates whose seconds are known."""
    timed = updates.dropna(subset=["samples"]).dropna(subset=SECONDS, how="all")
    seconds = float(timed[SECONDS].sum().sum())
    return f"{timed['samples'].sum() / seconds:,.3f}" if seconds > 0 else "-"
