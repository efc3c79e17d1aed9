"""python -m analysis report DIR/<sweep> [--target X]"""

from __future__ import annotations

import argparse
from pathlib import Path

from analysis.console import print_report
from analysis.errors import InputError
from analysis.load import load_sweep
from analysis.write import write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("sweep", type=Path, help="folder of the sweep, such as results/default")
    parser.add_argument("--target", type=float, help="another target than the plan's, in units of its metric")


def run(options: argparse.Namespace) -> int:
    """Write and print the report of a sweep."""
    target = options.target
    if target is not None and not 0 < target < 1:
        raise InputError(f"--target: {target:g}; scores lie between 0 and 1, and so must a target")
    report, paths = write_report(load_sweep(options.sweep, target))
    print_report(report, paths)
    return 0
