"""What the commands print: the plan, one batch in words, the state of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.batching import BatchShape
from harness.costs import Rates, cost_core_s
from harness.optimizer import SCALED
from harness.plan import Plan, PlannedTrial


def plain(text: str) -> Text:
    """Text of a file as it is: no markup, and nothing that a terminal obeys."""
    return Text("".join(letter if letter.isprintable() else " " for letter in text))


def console() -> Console:
    """The terminal at its width; files and pipes get lines wide enough for every table."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=200)


def plan_table(plan: Plan, selected: Sequence[PlannedTrial], rates: Rates) -> Table:
    """One row an arm; steps, passes, samples and cost are those of one trial, passes and accumulation of one rank."""
    reference = next(trial for trial in plan.trials if trial.arm == plan.reference_arm)
    table = Table(box=None, pad_edge=False)
    table.add_column("arm", no_wrap=True)
    for title in ("P", "G", "B", "kappa", "lr", "responses\nper step", "optimizer\nsteps", "backward\npasses"):
        table.add_column(title, justify="right")
    for title in ("accumu-\nlation", "samples", "cost\n(core-s)"):
        table.add_column(title, justify="right")
    for trial in {trial.arm: trial for trial in selected}.values():
        config, shape = trial.config, trial.config.batch_shape
        batches, cost = config.num_rollout_batches, cost_core_s(config, rates)
        passes = batches * config.algorithm.passes
        table.add_row(
            trial.arm + (" *" if trial.arm == plan.reference_arm else ""),
            f"{shape.num_prompts:,}",
            f"{shape.group_size:,}",
            f"{shape.train_batch:,}",
            f"{shape.train_batch / reference.config.batch.train_batch:g}",
            f"{config.optimizer.lr:.3g}",
            f"{shape.mini * shape.ranks:,}",
            f"{passes * shape.optimizer_steps:,}",
            f"{passes * shape.backward_passes:,}",
            f"{shape.gradient_accumulation_steps:,}",
            f"{batches * shape.train_batch:,}",
            "unknown" if cost is None else f"{cost:,.0f}",
        )
    return table


def settings_table(plan: Plan, selected: Sequence[PlannedTrial]) -> Table | None:
    """The critic's rate, and whatever else a rule changed, of the arms that have it; None when there is nothing."""
    arms = {trial.arm: trial.config for trial in selected}
    columns: dict[str, dict[str, str]] = {}
    told: set[str] = set()
    for prefix, section in (("", "optimizer"), ("critic ", "critic_optimizer")):
        optimizers = {arm: getattr(config, section) for arm, config in arms.items() if getattr(config, section)}
        changed = {name: {a for a, o in optimizers.items() if getattr(o, f"{name}_ref") is not None} for name in SCALED}
        shown = {name: who for name, who in changed.items() if who}
        if prefix and optimizers:
            shown = {"lr": set(optimizers)} | shown
        for name, who in shown.items():
            columns[prefix + name] = {arm: _setting(getattr(o, name)) for arm, o in optimizers.items()}
            told |= who
    if not columns:
        return None
    table = Table(box=None, pad_edge=False)
    table.add_column("after the rules", no_wrap=True)
    for title in columns:
        table.add_column(title, justify="right")
    for arm in arms:
        if arm in told or arm == plan.reference_arm:
            mark = " *" if arm == plan.reference_arm else ""
            table.add_row(arm + mark, *(column.get(arm, "-") for column in columns.values()))
    return table


def _setting(value: Any) -> str:
    """A number or a pair of numbers in a cell.

    >>> _setting((0.6, 0.996)), _setting(5e-9), _setting(2560), _setting(None)
    ('0.6, 0.996', '5e-09', '2,560', 'none')
    """
    if isinstance(value, tuple):
        return ", ".join(f"{number:.6g}" for number in value)
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def plan_notes(plan: Plan, selected: Sequence[PlannedTrial], rates: Rates, source: str) -> list[str]:
    """What the table does not show: the extent, the target, the total cost, and what is unlike what was asked."""
    arms = {trial.arm: trial.config for trial in selected}
    costs = [cost_core_s(trial.config, rates) for trial in selected]
    known = [cost for cost in costs if cost is not None]
    total = f"about {sum(known):,.0f} core-seconds of generation and training, by {source}" if known else "cost unknown"
    notes = [
        f"{len(arms)} arms, {len(selected)} trials; {total}",
        f"* reference arm; target {plan.target.metric} >= {plan.target.value:g}",
    ]
    coarse = [arm for arm, config in arms.items() if config.batch.train_batch > config.evaluation.every_samples]
    if coarse:
        notes.append(f"evaluated once a rollout batch, which is above evaluation.every_samples: {', '.join(coarse)}")
    over = [arm for arm, c in arms.items() if c.num_rollout_batches * c.batch.train_batch > c.budget_samples]
    if over:
        notes.append(f"the last rollout batch goes past budget_samples: {', '.join(over)}")
    for arm, config in arms.items():
        asked, taken = config.batch.micro_batch_size_per_gpu, config.batch_shape.micro
        if asked is not None and taken < min(asked, config.batch_shape.per_rank):
            notes.append(
                f"{arm}: micro-batch {taken}, the largest divisor of {config.batch_shape.per_rank} up to {asked}"
            )
    return notes


def batch_in_words(shape: BatchShape, asked_mini: int | None, asked_micro: int | None) -> str:
    """One rollout batch, line by line, each number with the arithmetic that gives it."""
    mini_why, micro_why = "as asked", "as asked"
    if asked_mini is None:
        mini_why = "unset: the rank's whole batch" if shape.mini == shape.per_rank else "unset: the micro-batch"
    if asked_micro is None:
        micro_why = "unset: the mini-batch"
    elif asked_micro != shape.micro:
        micro_why = f"the largest divisor of {shape.per_rank} up to {asked_micro}"
    step = f"{shape.mini} x {_count(shape.ranks, 'rank')} = {shape.mini * shape.ranks} an optimizer step"
    lines = {
        "rollout batch": f"{_count(shape.num_prompts, 'prompt')} x {_count(shape.group_size, 'response')} "
        f"= {_count(shape.train_batch, 'response')}",
        "rank": f"{shape.train_batch} / {_count(shape.ranks, 'rank')} = {_count(shape.per_rank, 'response')} a rank",
        "micro-batch": f"{_count(shape.micro, 'response')} a backward pass and rank ({micro_why})",
        "backward passes": f"{shape.per_rank} / {shape.micro} = {shape.backward_passes} a rank and rollout batch",
        "mini-batch": f"{_count(shape.mini, 'response')} an optimizer step and rank ({mini_why}); {step}",
        "accumulation": f"{shape.mini} / {shape.micro} = "
        f"{_count(shape.gradient_accumulation_steps, 'backward pass', 'es')} an optimizer step",
        "optimizer steps": f"{shape.per_rank} / {shape.mini} = {shape.optimizer_steps} a rank and rollout batch",
    }
    return "\n".join(f"{name:<17}{text}" for name, text in lines.items())


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}{plural}"
