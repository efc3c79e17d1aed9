"""What the benchmarks share: the trial they measure, spreads, tables, where the numbers come from."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from harness.plan import PlannedTrial, make_plan
from harness.provenance import provenance
from harness.sweep_file import load_sweep

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "bench"
TRAIN_BATCHES = (64, 256, 1024)
NO_NOISE = "statistics.every_samples=0"
"""An override: no measurement of the gradient's noise, which splits backward passes and adds some."""
PACKAGES = ("trl", "datasets", "accelerate", "pandas", "scipy")


@dataclass(frozen=True)
class Table:
    """One question and the rows that answer it; `notes` say what is aimed at and how it was measured."""

    question: str
    rows: list[dict[str, Any]]
    notes: tuple[str, ...] = ()


def run_module(module: str) -> list[Table]:
    """Run one benchmark, in the process made for it."""
    tables: list[Table] = importlib.import_module(module).run()
    return tables


def default_trial(train_batch: int, *overrides: str) -> PlannedTrial:
    """The trial of sweeps/default.yaml with the square-root rule at this batch, its first seed."""
    plan = make_plan(load_sweep(ROOT / "sweeps" / "default.yaml", overrides))
    return next(
        trial for trial in plan.trials if trial.axes["train_batch"] == train_batch and trial.axes["lr_rule"] == "sqrt"
    )


def spread(name: str, values: Sequence[float], digits: int = 4) -> dict[str, float]:
    """Median, least and greatest of repeated measurements, as columns.

    >>> spread("rate", [3.0, 1.0, 2.0])
    {'rate': 2.0, 'rate min': 1.0, 'rate max': 3.0}
    """
    found = {name: median(values), f"{name} min": min(values), f"{name} max": max(values)}
    return {key: significant(value, digits) for key, value in found.items()}


def significant(value: float, digits: int = 4) -> float:
    """The value to so many significant digits.

    >>> significant(12345.678), significant(0.00123456, 3)
    (12350.0, 0.00123)
    """
    return float(f"{value:.{digits}g}")


def show(table: Table) -> None:
    """Print the table."""
    console = Console(width=None if Console().is_terminal else 200)
    columns = list(dict.fromkeys(key for row in table.rows for key in row))
    drawn = RichTable(title=table.question, title_justify="left", title_style="bold")
    for column in columns:
        is_text = any(isinstance(row.get(column), str) for row in table.rows)
        drawn.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(_cell(row.get(column)) for column in columns))
    console.print(drawn)
    for note in table.notes:
        console.print(note, markup=False, highlight=False)


def _cell(value: Any) -> str:
    """Text of one cell.

    >>> _cell(None), _cell(1234567.0), _cell(0.125), _cell("a")
    ('', '1,234,567', '0.125', 'a')
    """
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
    return "" if value is None else str(value)


def where() -> dict[str, Any]:
    """Commit, machine and versions, as in a trial's provenance.json."""
    found = provenance()
    return {**found, "packages": found["packages"] | {name: v for name in PACKAGES if (v := _version(name))}}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
