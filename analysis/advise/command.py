"""python -m analysis advise DIR/<sweep> [--target X|auto] [--workers N]"""

from __future__ import annotations

import argparse
from pathlib import Path

from analysis.advise.advice import load_advice
from analysis.advise.write import write_advice
from analysis.console import plain_console
from analysis.errors import InputError
from analysis.report_command import target_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("sweep", type=Path, help="folder of the sweep, such as results/default-advise")
    parser.add_argument("--target", type=target_of, help="another target than the plan's; auto: by a rule")
    parser.add_argument("--workers", type=int, default=1, help="how many trials can run at once: so many are proposed")


def run(options: argparse.Namespace) -> int:
    """Write and print the advice."""
    if options.workers < 1:
        raise InputError(f"--workers {options.workers}: needed is a whole number from 1")
    advice = load_advice(options.sweep, options.target, options.workers)
    content, paths = write_advice(advice)
    console = plain_console()
    console.print(content["why"], soft_wrap=True)
    for path in paths:
        console.print(str(path), soft_wrap=True)
    return 0
