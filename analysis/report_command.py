"""python -m analysis report DIR/<sweep> [--target X|auto]"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analysis.console import print_report
from analysis.errors import InputError
from analysis.load import Asked, load_sweep
from analysis.write import write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("sweep", type=Path, help="folder of the sweep, such as results/default")
    parser.add_argument(
        "--target", type=target_of, help="another target than the plan's, in units of its metric; auto: by a rule"
    )


def target_of(text: str) -> Asked:
    """The value of --target: a number, or auto."""
    return "auto" if text == "auto" else float(text)


def run(options: argparse.Namespace) -> int:
    """Write and print the report of a sweep; 2 where the input is wrong and the report leaves a part of it out."""
    sweep = load_sweep(options.sweep, options.target)
    scores = sweep.evals[sweep.metric].dropna() if sweep.metric in sweep.evals else None
    of_shares = scores is not None and scores.between(0, 1).all()
    if isinstance(options.target, float) and of_shares and not 0 < sweep.target < 1:
        raise InputError(f"--target: {sweep.target:g}; scores lie between 0 and 1, and so must a target")
    report, paths = write_report(sweep)
    print_report(report, paths)
    for sentence in report["errors"]:
        print(f"error: {sentence}", file=sys.stderr)
    return 2 if report["errors"] else 0
