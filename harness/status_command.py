"""python -m harness status: the tables of harness.status, once or again and again."""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from harness.errors import InputError
from harness.plan import Plan
from harness.plan_file import read_plan
from harness.progress import clock
from harness.status import State, SweepStatus, TrialStatus, read_status
from harness.sweep_file import load_sweep
from harness.tables import console, plain

WATCH_EVERY_S = 2.0
# A narrow screen shows fewer columns; a running trial without a record for this long is worth a word.
WIDE, SILENT_S = 100, 30.0
_ORDER: tuple[State, ...] = ("completed", "diverged", "failed", "interrupted", "running", "waiting")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `status` takes."""
    add_folder(parser)
    parser.add_argument("--watch", action="store_true", help="show it anew every two seconds until the sweep is done")


def add_folder(parser: argparse.ArgumentParser) -> None:
    """What folder_of reads."""
    parser.add_argument("sweep", type=Path, metavar="FOLDER_OR_FILE", help="results/<sweep>, or its sweep file")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="instead of results")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override a dotted name")


def run(args: argparse.Namespace) -> int:
    """Print the state of a sweep; with --watch until nothing is left to do, or Ctrl-C."""
    sweep_dir = folder_of(args)
    out = console()
    if not args.watch:
        out.print(_view(_status(sweep_dir), sweep_dir, out.width, whole=True))
        return 0
    with suppress(KeyboardInterrupt):  # the sweep itself goes on
        _watch(out, sweep_dir)
    return 0


def folder_of(args: argparse.Namespace) -> Path:
    """The sweep's folder, named itself or by its sweep file."""
    path: Path = args.sweep
    if path.is_file():
        folder: Path = args.results / load_sweep(path, args.set).sweep
    elif path.is_dir():
        folder = path
        if args.set:
            raise InputError(f"--set {args.set[0]}: {path} is a folder of results; needs its sweep file instead")
    else:
        raise InputError(f"{path}: no such folder or file; needs results/<sweep>, or a sweep file")
    if read_plan(folder) is None:
        raise InputError(f"{folder}: no plan.json; python -m harness plan or sweep with the sweep file writes it")
    return folder


def _status(sweep_dir: Path) -> SweepStatus:
    plan = read_plan(sweep_dir)
    assert plan is not None  # folder_of has looked, and a plan is only ever replaced
    return read_status(plan, sweep_dir, time.time())


def _watch(out: Console, sweep_dir: Path) -> None:
    status = _status(sweep_dir)
    with Live(console=out, auto_refresh=False, vertical_overflow="crop") as live:
        while not status.is_done:
            if out.is_terminal:
                live.update(_view(status, sweep_dir, out.width, whole=False), refresh=True)
            else:
                out.print(plain(_heading(status)))
            time.sleep(WATCH_EVERY_S)
            status = _status(sweep_dir)
        live.update(_view(status, sweep_dir, out.width, whole=True), refresh=True)


def _view(status: SweepStatus, sweep_dir: Path, width: int, whole: bool) -> Group:
    """The heading and the table; not whole: without the trials that are done or wait, to fit a screen."""
    shown = [each for each in status.trials if whole or each.state not in ("completed", "waiting")]
    table = [_table(shown, status.plan, width)] if shown else []
    return Group(plain(_heading(status)), *table, plain(_what_now(status, sweep_dir)))


def _heading(status: SweepStatus) -> str:
    counts = status.counts
    parts = [", ".join(f"{counts[state]} {state}" for state in _ORDER if state in counts)]
    if status.samples_per_s is not None:
        parts.append(f"{status.samples_per_s:,.0f} samples/s")
    if status.left_s is not None:
        parts.append(f"about {clock(status.left_s)} left")
    return f"sweep {status.plan.sweep}, {len(status.trials)} trials: {'; '.join(parts)}"


def _what_now(status: SweepStatus, sweep_dir: Path) -> str:
    if status.is_timing:
        return "a process is timing the arms, nothing else running"
    if status.is_running:
        return "a process is running this sweep"
    if status.is_done:
        return f"done; next: python -m analysis report {sweep_dir}"
    if status.counts.get("running"):
        return "the process that ran this sweep is gone, and its workers are about to end"
    return "no process is running this sweep: python -m harness sweep with its sweep file goes on with what is missing"


def _table(trials: list[TrialStatus], plan: Plan, width: int) -> Table:
    """One row a trial: how it ended or how far it is, and its last value of the target's metric."""
    table = Table(box=None, pad_edge=False)
    for title in ("trial", "state"):
        table.add_column(title, no_wrap=True)
    score = plan.target.metric.removeprefix("eval/")
    for title in ("samples", "of", score, "samples/s", "time left") if width >= WIDE else ("samples", score, "left"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for each in trials:
        table.add_row(plain(each.trial.trial_id), each.state, *_figures(each, width), plain(_note(each)))
    return table


def _figures(status: TrialStatus, width: int) -> list[str]:
    samples, of = f"{status.samples_trained:,}", f"{status.trial.config.budget_samples:,}"
    score = "-" if status.score is None else f"{status.score:.3f}"
    rate = "-" if status.samples_per_s is None else f"{status.samples_per_s:,.0f}"
    left = clock(status.left_s) if status.state == "running" and status.left_s is not None else "-"
    return [samples, of, score, rate, left] if width >= WIDE else [samples, score, left]


def _note(status: TrialStatus) -> str:
    """Why it ended, or how long nothing has been heard of it."""
    if status.state == "running":
        return f"silent for {clock(status.silent_s)}" if status.silent_s and status.silent_s >= SILENT_S else ""
    if status.state == "waiting":
        return "goes on from its last checkpoint" if status.samples_trained else ""
    return "" if status.state == "completed" else status.reason
