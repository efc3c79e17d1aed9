"""python -m analysis report DIR/<sweep> [--target X]"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.console import print_report
from analysis.errors import InputError
from analysis.load import load_sweep
from analysis.write import write_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 2 wrong input, 3 the environment."""
    parser = argparse.ArgumentParser(prog="python -m analysis", description="Which batch reaches the target first?")
    commands = parser.add_subparsers(dest="command", required=True)
    report = commands.add_parser("report", help="analyse a sweep and write its report folder")
    report.add_argument("sweep", type=Path, help="folder of the sweep, such as results/default")
    report.add_argument("--target", type=float, help="another target than the plan's, in units of its metric")
    options = parser.parse_args(arguments)
    try:
        return _report(options.sweep, options.target)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename or options.sweep}: {error.strerror or error}", file=sys.stderr)
        return 3


def _report(path: Path, target: float | None) -> int:
    if target is not None and not 0 < target < 1:
        raise InputError(f"--target: {target:g}; scores lie between 0 and 1, and so must a target")
    report, paths = write_report(load_sweep(path, target))
    print_report(report, paths)
    return 0


if __name__ == "__main__":
    sys.exit(main())
