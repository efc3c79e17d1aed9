"""python -m harness sync: send to Weights & Biases what it lacks of a sweep, and its report.

It reads results/<sweep>, not the client's own offline folders: whatever was lost on the way is there. It can be
repeated, also while the sweep runs offline; one run after another, since several at a time fail at random.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from harness.plan import Plan
from harness.plan_file import read_plan
from harness.run_dir import is_held
from harness.status_command import add_folder, folder_of
from harness.tables import console, plain
from harness.trial_queue import trial_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sync` takes."""
    add_folder(parser)


def run(args: argparse.Namespace) -> int:
    """Send every trial that does not run, then the report where there is one. EnvironmentProblem where that fails."""
    sweep_dir = folder_of(args)
    plan = read_plan(sweep_dir)
    assert plan is not None  # folder_of has looked
    os.environ.setdefault("WANDB_SILENT", "true")
    try:
        _send(plan, sweep_dir)
    except Exception as error:  # the client raises its own, the socket's and the operating system's errors
        from harness.tracking.wandb import problem

        raise problem(error) from None
    return 0


def _send(plan: Plan, sweep_dir: Path) -> None:
    from harness.tracking.wandb import send_report, send_trial

    out = console()
    for trial in plan.trials:
        run = trial_dir(sweep_dir, trial)
        if not run.metrics_path.exists():
            continue
        if is_held(run.path / "lock"):
            out.print(plain(f"{trial.trial_id}: left out, it is running; the same command sends it later"))
            continue
        sent = send_trial(trial, sweep_dir, _provenance(run.path), run.outcome())
        out.print(plain(f"{trial.trial_id}: {sent:,} rows sent"))
    if (sweep_dir / "report" / "report.json").is_file():
        out.print("report: " + ("sent" if send_report(plan, sweep_dir) else "there already"))
    else:
        out.print(plain(f"no report: python -m analysis report {sweep_dir} makes one"))


def _provenance(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / "provenance.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
