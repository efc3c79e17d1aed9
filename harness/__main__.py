"""python -m harness COMMAND. Validates first, imports heavy libraries after."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn, get_args

import harness
from harness import dashboard, status_command, sync
from harness.advise.budget import parse_budget
from harness.advise.plan import make_study
from harness.batching import Cadence, resolve_batch
from harness.config import TrialConfig
from harness.costs import measured_rates
from harness.errors import HarnessError, InputError
from harness.model_files import ask_hub, check_model
from harness.plan import Plan, PlannedTrial, make_plan, select_trials
from harness.plan_file import check_plan, write_plan
from harness.secrets import redact
from harness.signals import leave
from harness.sweep_file import load_sweep
from harness.tables import batch_in_words, console, plan_notes, plan_table, settings_table
from harness.tasks import make_task, needs_hub
from harness.tracking.tensorboard import check_tensorboard

REFERENCE_REPORTS = Path(harness.__file__).parents[1] / "results" / "reference"
INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line the way every other wrong input is reported."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; {self.prog} --help lists what there is")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0 done, 1 trials failed, 2 wrong input, 3 environment, 130 Ctrl-C."""
    try:
        args = _parser().parse_args(argv)
        code: int = args.run(args)
        return code
    except HarnessError as error:
        print(f"error: {redact(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("error: interrupted; the same command goes on with what is missing", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m harness", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, run, text in (
        ("plan", _plan, "print what a sweep will run, and write its plan.json"),
        ("sweep", _sweep, "run the trials of a sweep that are not done"),
        ("profile", _profile, "measure how fast a sweep's arms generate and train, without learning"),
        ("advise", _advise, "run as few trials as it takes to say which of a sweep's batches is the fastest"),
    ):
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(run=run)
        command.add_argument("file", type=Path, metavar="FILE", help="sweep file, for instance sweeps/default.yaml")
        command.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="instead of results")
        command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override a dotted name")
        if name == "advise":
            text = "stop before this is used up, over all calls: 2h, 45m, 90s or 600000samples; else advise.most_share"
            command.add_argument("--budget", metavar="BUDGET", help=text)
            continue
        command.add_argument("--only", action="append", default=[], metavar="ARM", help="run this arm; repeatable")
        if name == "profile":
            command.set_defaults(seeds=[])  # they change no speed
        else:
            command.add_argument("--seeds", type=_seeds, default=[], metavar="LIST", help="run these seeds, as 0,2,3")
    for name, module, text in (
        ("status", status_command, "show how far each trial of a sweep is, also while it runs"),
        ("sync", sync, "send to Weights & Biases what it lacks of a sweep, and its report"),
        ("dashboard", dashboard, "save a workspace in Weights & Biases that shows a sweep"),
    ):
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(run=module.run)
        module.add_arguments(command)
    batch = commands.add_parser("batch", help="explain one batch in words and numbers", allow_abbrev=False)
    batch.set_defaults(run=_batch)
    batch.add_argument("--num-prompts", type=int, required=True, metavar="P", help="prompts per rollout batch")
    batch.add_argument("--group-size", type=int, required=True, metavar="G", help="responses per prompt")
    batch.add_argument("--ranks", type=int, default=1, metavar="N", help="data-parallel ranks")
    batch.add_argument("--micro", type=int, metavar="N", help="responses per backward pass and rank")
    batch.add_argument("--mini", type=int, metavar="N", help="responses per optimizer step and rank")
    batch.add_argument(
        "--cadence", choices=get_args(Cadence), default="one_step_per_batch", help="what unset --mini means"
    )
    return parser


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}; needs whole numbers separated by commas, such as 0,2,3") from None


def _plan(args: argparse.Namespace) -> int:
    plan, selected, sweep_dir = _planned(args)
    write_plan(plan, sweep_dir)
    rates, source = measured_rates(plan, sweep_dir, REFERENCE_REPORTS)
    out = console()
    out.print(plan.question, markup=False)
    out.print(plan_table(plan, selected, rates))
    if settings := settings_table(plan, selected):
        out.print(settings)
    for note in plan_notes(plan, selected, rates, source):
        out.print(note, markup=False)
    out.print(f"wrote {sweep_dir / 'plan.json'}", markup=False)
    return 0


def _sweep(args: argparse.Namespace) -> int:
    plan, selected, _ = _planned(args)
    _ask_hub(selected)
    from harness.sweep import run_sweep

    code = run_sweep(plan, selected, args.results)
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is kept; one more Ctrl-C must not spoil the exit code
    return code


def _profile(args: argparse.Namespace) -> int:
    plan, selected, _ = _planned(args)
    _ask_hub(selected)
    from harness.profile import run_profile

    return run_profile(plan, selected, load_sweep(args.file, args.set).profile, args.results)


def _advise(args: argparse.Namespace) -> int:
    given = parse_budget(args.budget) if args.budget is not None else None
    study = make_study(load_sweep(args.file, args.set))
    _check(study.plan)
    check_plan(study.plan, args.results / study.plan.sweep)
    _ask_hub(study.plan.trials)
    from harness.advise.hand import Hand
    from harness.advise.loop import run_advice
    from harness.advise.session import kept_pool

    with kept_pool() as open_pool:
        code = run_advice(Hand(study, args.results, open_pool=open_pool), given or study.budget)
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def _ask_hub(selected: Iterable[PlannedTrial]) -> None:
    """InputError unless model and prompts are there, also those that only the hub knows of."""
    for config in _distinct(trial.config for trial in selected):
        ask_hub(config.model)
        _check_prompts(config)


def _batch(args: argparse.Namespace) -> int:
    shape = resolve_batch(
        args.num_prompts,
        args.group_size,
        ranks=args.ranks,
        mini_batch_size=args.mini,
        micro_batch_size_per_gpu=args.micro,
        cadence=args.cadence,
    )
    print(batch_in_words(shape, args.mini, args.micro))
    return 0


def _planned(args: argparse.Namespace) -> tuple[Plan, list[PlannedTrial], Path]:
    """The plan, its chosen trials and its folder. Everything that can be wrong with the input is found here."""
    plan = make_plan(load_sweep(args.file, args.set))
    _check(plan)
    selected, sweep_dir = select_trials(plan, args.only, args.seeds), args.results / plan.sweep
    check_plan(plan, sweep_dir)
    return plan, selected, sweep_dir


def _check(plan: Plan) -> None:
    """InputError unless what the trials need is there, as far as this machine knows."""
    for trial in plan.trials:
        check_tensorboard(trial.config.tracking)
    for config in _distinct(trial.config for trial in plan.trials):
        check_model(config.model)
        if not needs_hub(config.task):
            _check_prompts(config)


def _distinct(configs: Iterable[TrialConfig]) -> list[TrialConfig]:
    """One configuration for each model, task and evaluation that occur together."""
    return list({repr((config.model, config.task, config.evaluation)): config for config in configs}.values())


def _check_prompts(config: TrialConfig) -> None:
    """InputError unless the task has what its configuration says."""
    make_task(config.task).eval_prompts(config.evaluation.num_prompts, config.evaluation.seed)


if __name__ == "__main__":
    leave(main())
