"""python -m analysis advise DIR/<sweep> [--target X|auto] [--workers N] [--judge DIR/<s>] [--predict DIR/<s>]"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from analysis.advise.advice import Advice, load_advice
from analysis.advise.judge import judge, judge_sentence
from analysis.advise.predict import prediction_table, summary
from analysis.advise.words import change_sentence, percent
from analysis.advise.write import write_advice
from analysis.console import plain_console
from analysis.errors import InputError
from analysis.page import replace_file
from analysis.report_command import target_of
from analysis.words import interval


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("sweep", type=Path, help="folder of the sweep, such as results/default-advise")
    parser.add_argument("--target", type=target_of, help="another target than the plan's; auto: by a rule")
    parser.add_argument("--workers", type=int, default=1, help="how many trials can run at once: so many are proposed")
    parser.add_argument(
        "--judge", type=Path, help="sweep with seeds that the advice has not seen: what it costs to follow it"
    )
    parser.add_argument("--predict", type=Path, help="the same: how well r_N was predicted, by source")


def run(options: argparse.Namespace) -> int:
    """Write and print the advice, and what a judge says of it."""
    if options.workers < 1:
        raise InputError(f"--workers {options.workers}: needed is a whole number from 1")
    advice = load_advice(options.sweep, options.target, options.workers)
    content, paths = write_advice(advice)
    console = plain_console()
    _print(console, content)
    if options.judge:
        paths.append(_judge(console, advice, options.judge))
    if options.predict:
        paths.append(_predict(console, advice, options.predict))
    for path in paths:
        console.print(str(path), soft_wrap=True)
    return 0


def _print(console: Console, content: Mapping[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("arm", "B", "runs", "branches", "r_N", "r_q", "r_T", "fastest"):
        table.add_column(name, justify="left" if name == "arm" else "right", no_wrap=True)
    for arm in sorted(content["arms"], key=lambda arm: arm["train_batch"]):
        table.add_row(
            arm["arm"],
            f"{arm['train_batch']:,}",
            f"{arm['reached']}/{arm['runs']}",
            str(arm["branches"]),
            interval(arm["r_N"]),
            interval(arm["r_q"]).split(" ")[0],
            interval(arm["r_T"]),
            "-" if arm["probability_best"] is None else percent(arm["probability_best"]),
        )
    console.print(table)
    console.print()
    lines = [content["headline"], *content["sentences"], *map(change_sentence, content["changes"]), *content["unknown"]]
    for line in lines:
        console.print(line, soft_wrap=True)
    console.print()


def _judge(console: Console, advice: Advice, folder: Path) -> Path:
    found = judge(advice, folder)
    path = advice.sweep.path / "advice" / "judge.json"
    replace_file(path, json.dumps(found, indent=1, allow_nan=False) + "\n")
    console.print(judge_sentence(found), soft_wrap=True)
    return path


def _predict(console: Console, advice: Advice, folder: Path) -> Path:
    found = prediction_table(advice, folder)
    path = advice.sweep.path / "advice" / "tables" / "prediction.csv"
    found.to_csv(path, index=False)
    for frame in (found, summary(found)):
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in frame:
            table.add_column(str(name), justify="left" if name in ("source", "arm") else "right", no_wrap=True)
        for _, row in frame.iterrows():
            table.add_row(*(_cell(value) for value in row))
        console.print(table)
        console.print()
    return path


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "-" if value != value else f"{value:.3f}"
    return "-" if value is None else str(value)
