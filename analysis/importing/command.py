"""python -m analysis import PATH... --out DIR/<sweep>"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.errors import InputError
from analysis.importing.arms import Stored, slug, stored_trials
from analysis.importing.console import print_import
from analysis.importing.formats import MODULES, is_online, logs_under, reader_of
from analysis.importing.plan import Choices, plan_of, stored_choices
from analysis.importing.run import ImportedRun, Options
from analysis.importing.write import config_of, write_trial
from analysis.plan_file import check_plan

LIST_COLUMNS = ("path", "format", "arm", "seed", "num_prompts", "group_size", "lr")
EPILOG = """
One log is one run; runs of one batch and rate are the seeds of an arm, found from what the logs say. A folder is
searched for logs. Import into the same --out again to add runs, or to read a log anew.

eight verl logs of four batches, two seeds each, and their table of r_N:
  python -m analysis import logs/ --out results/mine
  python -m analysis report results/mine

logs that do not say their batch (such as verl's JSONL), one call a batch:
  python -m analysis import logs/p64/*.jsonl --num-prompts 64 --group-size 8 --out results/mine
or a list of runs, a CSV with the columns path and any of arm, seed, num_prompts, group_size, lr, format:
  python -m analysis import --runs runs.csv --out results/mine

runs of TRL (output folders, trainer_state.json, console logs), event files, W&B runs offline and online:
  python -m analysis import outputs/grpo-*/ runs/openrlhf/ wandb/ wandb://ENTITY/PROJECT/RUN_ID --out results/mine

a table (CSV, TSV, JSONL); its fields are step, prompts_trained or samples_trained, each after the row's update, score
(after it), train_score (before it), seconds or generate_s, reward_s, train_s, sync_s, evaluate_s, checkpoint_s, lr,
grad_norm, critic_grad_norm, response_length, and run, arm, seed, num_prompts, group_size:
  python -m analysis import log.csv --columns step=it,score=acc --num-prompts 64 --group-size 8 --out results/mine
"""


@dataclass(frozen=True)
class Log:
    """A path that the user named, with what was said of its runs."""

    path: Path
    options: Options
    format: str | None = None
    arm: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="a log, a folder with logs, or runs on W&B")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR/SWEEP", help="folder of the sweep to write")
    parser.add_argument("--format", choices=sorted(MODULES), help="of the logs; recognised where it is not said")
    parser.add_argument("--runs", type=Path, metavar="CSV", help="a list of logs, one a row")
    parser.add_argument(
        "--num-prompts", type=int, metavar="P", help="prompts a rollout batch, where logs do not say it"
    )
    parser.add_argument("--group-size", type=int, metavar="G", help="responses per prompt, where logs do not say it")
    parser.add_argument("--lr", type=float, help="learning rate, where logs do not say it")
    parser.add_argument("--arm", help="name of the arm; made of the batch and what differs where it is not said")
    parser.add_argument("--seed", type=int, help="seed of the one log")
    parser.add_argument("--columns", default="", metavar="FIELD=NAME,...", help="which columns of a table hold what")
    parser.add_argument("--score", metavar="NAME", help="the score that the curves are made of")
    parser.add_argument(
        "--target", type=float, metavar="X", help="the score to reach; chosen by a rule where it is not said"
    )
    parser.add_argument("--reference", metavar="ARM", help="the arm that ratios are to; the smallest batch if not said")


def run(options: argparse.Namespace) -> int:
    """Import, write the sweep and print what was found and assumed. Nothing is written where an input is wrong."""
    for name, value in (("--target", options.target), ("--lr", options.lr)):
        if value is not None and not math.isfinite(value):
            raise InputError(f"{name} {value}: needed is a finite number")
    if options.lr is not None and options.lr <= 0:
        raise InputError(f"--lr {options.lr:g}: needed is a number above 0")
    known, choices = stored_trials(options.out), _choices(options)
    runs, unknown = [], []
    for log in _logs(options):
        found = logs_under(log.path, log.format)
        if not found:
            raise InputError(_not_recognised(log))
        if log.options.seed is not None and len(found) > 1:
            raise InputError(f"--seed {log.options.seed}: {log.path} holds {len(found)} logs; a seed is of one")
        for path, name in found:
            runs += [_completed(one, log, path) for one in _read(path, name, log.options)]
        unknown += _unrecognised(log.path, [path for path, _ in found])
    trials = _identified(known, runs)
    new = {trial_id for trial_id, _, one in trials if one is not None}
    plan = plan_of(options.out.resolve().name, [Stored(i, config) for i, config, _ in trials], choices)
    check_plan(plan, options.out / "plan.json")
    options.out.mkdir(parents=True, exist_ok=True)
    for trial_id, config, one in trials:
        if one is not None:
            write_trial(options.out / "trials" / trial_id, one, config)
    partial = options.out / "plan.json.partial"
    partial.write_text(json.dumps(plan, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(options.out / "plan.json")
    print_import(options.out, len(new), unknown)
    return 0


def _read(path: Path, name: str, options: Options) -> list[ImportedRun]:
    """The runs of a log. Whatever else a damaged file makes a reader stumble over is wrong input too."""
    try:
        return list(reader_of(name).read(path, options))
    except (InputError, OSError, ImportError):
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise InputError(f"{path} cannot be read as a log of {name} ({what[:200]}); is it damaged?") from error


def _choices(options: argparse.Namespace) -> Choices:
    """What is chosen now, else what was chosen when the sweep was imported before."""
    before = stored_choices(options.out)
    given = {name: value for name in ("score", "target", "reference") if (value := getattr(options, name)) is not None}
    return replace(before, **given)


def _logs(options: argparse.Namespace) -> list[Log]:
    """The logs of the command line, then those of the list of runs."""
    said = Options(
        num_prompts=options.num_prompts,
        group_size=options.group_size,
        lr=options.lr,
        seed=options.seed,
        columns=_columns(options.columns),
    )
    name = options.format or ("table" if said.columns else None)
    logs = [Log(path, said, name, options.arm) for path in options.paths]
    if options.seed is not None and len(logs) > 1:
        raise InputError(f"--seed {options.seed}: {len(logs)} logs are named; a seed is of one")
    if options.runs:
        logs += _listed(options.runs, said, name)
    if not logs:
        raise InputError("there is nothing to import: name logs, folders of logs, or a list of them with --runs")
    return logs


def _columns(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    for field, equals, name in pairs:
        if not equals or not name:
            raise InputError(f"--columns {field}: needed is FIELD=NAME, several with commas between")
    return {field.strip(): name.strip() for field, _, name in pairs}


def _listed(path: Path, said: Options, format_name: str | None) -> Iterator[Log]:
    """The logs of a list of runs; their paths are seen from where the list lies."""
    if not path.is_file():
        raise InputError(f"--runs {path}: there is no such file")
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file, skipinitialspace=True))
    for number, row in enumerate(rows, 2):
        unknown = [name for name in row if name not in LIST_COLUMNS]
        if unknown or not row.get("path"):
            what = f"column {unknown[0]!r}" if unknown else "no path"
            raise InputError(
                f"{path}, line {number}: {what}; its columns are {', '.join(LIST_COLUMNS)}, path in each row"
            )
        told: dict[str, Any] = {
            name: _number(path, number, name, text) for name, text in row.items() if text and name in LIST_COLUMNS[3:]
        }
        name = row.get("format") or format_name
        log = Path(row["path"])
        yield Log(log if is_online(log) else path.parent / log, replace(said, **told), name, row.get("arm") or None)


def _number(path: Path, line: int, name: str, text: str) -> int | float:
    try:
        return float(text) if name == "lr" else int(text)
    except ValueError:
        raise InputError(f"{path}, line {line}: {name} is {text!r}, needed is a number") from None


def _completed(run: ImportedRun, log: Log, path: Path) -> ImportedRun:
    """The run with its arm, a name that tells logs of one folder apart, and the seed that its path states."""
    below = path.relative_to(log.path).with_suffix("") if path != log.path else None
    name = "/".join(below.parts) if below else run.name
    if below and run.name != path.stem:
        name = f"{name}/{run.name}"
    stated = re.findall(r"(?:seed[-_=]?|(?<=[-_/])s(?=\d+(?:[-_/]|$)))(\d+)", name, flags=re.IGNORECASE)
    seed = log.options.seed if log.options.seed is not None else int(stated[-1]) if stated else run.seed
    return replace(run, name=name, seed=seed, arm=log.arm or run.arm)


def _identified(
    known: Sequence[Stored], runs: Sequence[ImportedRun]
) -> list[tuple[str, Mapping[str, object], ImportedRun | None]]:
    """(trial_id, config, run) of all trials; run None: it is there already. A log that is there is read anew."""
    found: dict[str, tuple[Mapping[str, object], ImportedRun | None]] = {t.trial_id: (t.config, None) for t in known}
    ids = {(trial.imported["source"], trial.imported["name"]): trial.trial_id for trial in known}
    for run in runs:
        key = (str(run.source.resolve()), run.name)
        if key not in ids:
            name, number = slug(run.name), 1
            trial_id = name
            while trial_id in found:
                number += 1
                trial_id = f"{name}-{number}"
            ids[key] = trial_id
        found[ids[key]] = (config_of(run), run)
    return [(trial_id, config, one) for trial_id, (config, one) in found.items()]


def _not_recognised(log: Log) -> str:
    kinds = log.format or " or ".join(sorted(MODULES))
    text = "it is" if log.path.is_file() else "it holds"
    return f"{log.path} is not recognised: {text} no log of {kinds}; a table of another shape needs --columns"


def _unrecognised(path: Path, found: Sequence[Path]) -> list[Path]:
    """Files of a folder that belong to no log."""
    if path.is_file():
        return []
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    return [file for file in files if not any(file == log or log in file.parents for log in found)]
