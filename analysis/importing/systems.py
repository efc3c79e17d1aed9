"""Whose rows these are: a logger that any system may write to hands them to the system whose names it finds."""

from __future__ import annotations

from analysis.importing import openrlhf, table, trl, verl
from analysis.importing.run import History, ImportedRun, Options


def run_of(history: History, options: Options) -> ImportedRun:
    """The run that the rows of a logger are: a table of steps with a map of columns, or under names of no system."""
    names = {name for _, metrics in history.rows for name in metrics}
    if not options.columns:
        for system in (verl, trl, openrlhf):
            if system.speaks(names):
                return system.run_of(history, options)
    return table.run_of(history, options)
