"""python -m analysis compare A B [--target X|auto] [--out DIR]"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from analysis.compare_figure import draw_comparison
from analysis.compare_words import compare_tables, label
from analysis.comparison import Side, compare_sides, name
from analysis.console import plain_console
from analysis.errors import InputError
from analysis.load import Asked, load_sweep
from analysis.report_command import target_of
from analysis.results import analyse
from analysis.words import interval


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("first", type=Path, help="folder of a sweep, such as results/default")
    parser.add_argument("second", type=Path, help="folder of the sweep that is put in relation to it")
    parser.add_argument(
        "--target", type=target_of, help="one target for both, else each has its plan's; auto: by a rule"
    )
    parser.add_argument("--out", type=Path, help="folder to write to, else FIRST/compare_SECOND")


def run(options: argparse.Namespace) -> int:
    """Compare two sweeps, write what was found and print it; 2 where a part of either is wrong input."""
    if options.first.resolve() == options.second.resolve():
        raise InputError(f"{options.first} and {options.second} are one sweep: name two")
    first = _side(options.first, options.target)
    # What a rule chooses for the first holds for both: N* at two targets would be two things.
    sides = [first, _side(options.second, first.sweep.target if options.target == "auto" else options.target)]
    names = [name(side, sides) for side in sides]
    found = compare_sides(*sides)
    folder = options.out or options.first / f"compare_{options.second.resolve().name}"
    paths = _write(found, sides, names, folder)
    _print(found, names, paths)
    for sentence in found["errors"]:
        print(f"error: {sentence}", file=sys.stderr)
    return 2 if found["errors"] else 0


def _side(folder: Path, target: Asked) -> Side:
    sweep = load_sweep(folder, target)
    return Side(sweep, analyse(sweep))


def _write(found: dict[str, Any], sides: list[Side], names: list[str], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "compare.json"
    data.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    tables = []
    for table_name, table in compare_tables(found).items():
        tables.append(folder / f"{table_name}.csv")
        table.to_csv(tables[-1], index=False)
    return [data, *tables, *draw_comparison([side.results.tables for side in sides], names, folder)]


def _print(found: dict[str, Any], names: list[str], paths: list[Path]) -> None:
    console = plain_console()
    for table in (_quantities(found, names), _arms(found, "r_N"), _arms(found, "r_T")):
        console.print(table)
        console.print()
    _print_lines(console, [f"1: {names[0]}, 2: {names[1]}.", *found["headline"], *found["warnings"]])
    console.print()
    _print_lines(console, [str(path) for path in paths])


def _print_lines(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


def _quantities(found: dict[str, Any], names: list[str]) -> Table:
    table = _table("", *names, f"{names[1]} / {names[0]}")
    for row in found["quantities"]:
        table.add_row(
            row["name"], *(interval(value, _digits(value)) for value in row["values"]), interval(row["ratio"])
        )
    for network, slope in found["slopes"].items():
        if any(value["estimate"] is not None for value in slope["values"]):
            cells = [interval(value) for value in slope["values"]]
            table.add_row(f"slope of the {network}'s gradient", *cells, f"{interval(slope['difference'])} (difference)")
    return table


def _digits(value: dict[str, Any]) -> int:
    """Three digits or more of what is small: rates of large models are a few samples a second."""
    return 0 if value["estimate"] is None or value["estimate"] >= 100 else 2


def _arms(found: dict[str, Any], key: str) -> Table:
    table = _table("arms of both", *(f"{key} {which}" for which in ("1", "2", "2/1")))
    for row in found["arms"]:
        table.add_row(label(row), *(interval(value) for value in [*row[key]["values"], row[key]["ratio"]]))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for other in others:
        table.add_column(other, justify="right", no_wrap=True)
    return table
