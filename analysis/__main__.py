"""python -m analysis COMMAND; `--help` after a command says what it takes."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from analysis.errors import InputError

# Each module has `add_arguments(parser)` and `run(options) -> int`; only the one that is called is imported.
COMMANDS = {
    "report": ("analysis.report_command", "analyse a sweep and write its report folder"),
    "compare": ("analysis.compare", "two sweeps side by side: what moved between them, and what else differs"),
    "advise": (
        "analysis.advise.command",
        "which batch to use by the records so far, how sure that is, what to run next",
    ),
    "import": ("analysis.importing.command", "turn logs of other systems into a sweep that report reads"),
    "profile": ("analysis.profile", "a profile beside the bound and the published ratios"),
    "paper": ("analysis.paper", "recompute the published numbers from one another"),
    "roofline": ("analysis.roofline", "lower bounds of training and decode steps, and what fits in memory"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 2 wrong input, 3 the environment."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m analysis", description="Which batch reaches the target first?")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (module, help_text) in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text)
        if name in arguments[:1]:
            importlib.import_module(module).add_arguments(command)
    options = parser.parse_args(arguments)
    try:
        code: int = importlib.import_module(COMMANDS[options.command][0]).run(options)
        return code
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename or 'the machine'}: {error.strerror or error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
