"""What an advice may run: candidate arms at several rates and seeds, branches, and measurements of speed. Pure.

<sweep>-advise             every candidate arm x rate x seed; only what is asked for is run
<sweep>-advise-branches    short trials from checkpoints of the reference's
<sweep>-advise-speed       the advised arms with fewer places in flight
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.advise.budget import Budget
from harness.arm_names import leaves_of
from harness.config import SweepConfig, TrialConfig, flatten
from harness.errors import InputError
from harness.plan import Arm, Plan, PlannedTrial, expand, make_plan, with_config

SUFFIX = "-advise"
# Rates beyond the grid, should its last be the best: twice a factor of two at either end.
EXTENSIONS = (2.0, 4.0)
MOST_CHECKPOINTS = 32
# What the learning of a sample depends on, beside the number of prompts and the group size.
_OF_LEARNING = (
    *(f"{section}." for section in ("model", "task", "algorithm", "optimizer", "sampling", "evaluation")),
    "batch.mini_batch_size",
    "batch.cadence",
)
# Rules and rates are compared as they are once resolved.
_RESOLVED = ("optimizer.lr_rule", "optimizer.lr_table.", "algorithm.critic.lr_rule", "algorithm.critic.lr_table.")


@dataclass(frozen=True)
class Study:
    """What an advice on a sweep file may run, and what the whole sweep would have cost.

    left_out: arms of the file that are no candidates, and why. full_sweep_samples: of the candidates at the file's rate
    and seeds.
    """

    sweep: SweepConfig
    plan: Plan
    left_out: Mapping[str, str]
    full_sweep_samples: int

    @property
    def branches(self) -> str:
        """The name of the sweep of its branches."""
        return f"{self.plan.sweep}-branches"

    @property
    def speed(self) -> str:
        """The name of the sweep that only measures speed."""
        return f"{self.plan.sweep}-speed"

    @property
    def budget(self) -> Budget:
        """advise.most_share of the whole sweep, or the rates, the reference and one other arm if that may take more."""
        advise = self.sweep.advise
        if advise.most_share is None:
            return Budget()
        few = len(advise.rates) + advise.reference_seeds + advise.most_seeds
        return Budget(max(advise.most_share * self.full_sweep_samples, few * self.sweep.budget_samples))

    def as_json(self, workers: int) -> dict[str, Any]:
        """The content of advise.json, which analysis reads."""
        return {
            "format": 1,
            "sweep": self.sweep.sweep,
            **self.sweep.advise.model_dump(mode="json"),
            "branches": self.branches,
            "speed": self.speed,
            "left_out": dict(self.left_out),
            "full_sweep_samples": self.full_sweep_samples,
            "workers": workers,
        }


def make_study(sweep: SweepConfig) -> Study:
    """The candidates are the arms that learn as the reference does. InputError where there is nothing to choose."""
    whole, arms = make_plan(sweep), list(expand(sweep))
    trials = whole.trials[: len(arms)]  # the first seed's, in the order of the arms
    place = next(number for number, trial in enumerate(trials) if trial.arm == whole.reference_arm)
    left_out = {
        trial.arm: why
        for arm, trial in zip(arms, trials, strict=True)
        if (why := _why_not(arm, trial, arms[place], trials[place]))
    }
    kept = [number for number, trial in enumerate(trials) if trial.arm not in left_out]
    if len(kept) < 2:
        told = "; ".join(f"{arm}: {why}" for arm, why in left_out.items()) or "the file has one arm"
        raise InputError(
            f"arms: an advice needs two or more to choose from, with the rule and rate of the reference; {told}"
        )
    samples = sum(_samples(trial.config) for trial in whole.trials if trial.arm not in left_out)
    plan = _candidates(sweep, [arms[number] for number in kept], kept.index(place))
    return Study(sweep, plan, left_out, samples)


def _why_not(arm: Arm, trial: PlannedTrial, reference: Arm, reference_trial: PlannedTrial) -> str:
    """Why an arm is no candidate; empty for one that is."""
    for name in ("lr_rule", "critic_lr_rule"):
        own, asked = trial.axes.get(name), reference_trial.axes.get(name)
        if own != asked:
            return f"{name} {own}, where the reference has {asked}"
    own_lr, lr = arm.settings.optimizer.lr, reference.settings.optimizer.lr
    if own_lr != lr:
        return f"a rate of its own, {own_lr:g}, where the reference has {lr:g}"
    leaves, wanted = leaves_of(arm.settings), leaves_of(reference.settings)
    for name in sorted(wanted | leaves, key=lambda name: not name.endswith(".name")):  # a name explains the rest
        if leaves.get(name) != wanted.get(name) and name.startswith(_OF_LEARNING) and not name.startswith(_RESOLVED):
            return f"{name} {_told(leaves.get(name))}, where the reference has {_told(wanted.get(name))}"
    return ""


def _told(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _samples(config: TrialConfig) -> int:
    return config.num_rollout_batches * config.batch.train_batch


def _candidates(sweep: SweepConfig, arms: Sequence[Arm], reference: int) -> Plan:
    """Each arm at each rate with each seed; trials of the reference's batch keep checkpoints to branch from."""
    lr = arms[reference].settings.optimizer.lr
    rates = [float(f"{lr * factor:.12g}") for factor in _factors(sweep, arms[reference])]
    first, settings = sweep.advise.first_seed, sweep.advise
    changed = {
        "sweep": sweep.sweep + SUFFIX,
        "seeds": tuple(range(first, first + settings.most_seeds)),
        "stop_past_target_frac": settings.past_target,
        "reference": flatten(sweep.reference) | {"optimizer.lr": lr},
        "arms": tuple(
            {name: [value] for name, value in arm.overrides.items()} | {"optimizer.lr": rates} for arm in arms
        ),
    }
    plan = make_plan(sweep.model_copy(update=changed))
    names = [trial.arm for trial in plan.trials[: len(arms) * len(rates)]]
    parents = set(names[reference * len(rates) : (reference + 1) * len(rates)])
    return replace(plan, trials=tuple(_parent(t) if t.arm in parents else t for t in plan.trials))


def _factors(sweep: SweepConfig, reference: Arm) -> list[float]:
    """Of the file's rate: the grid and what lies beyond its ends. A table says all rates itself."""
    if reference.settings.optimizer.lr_rule == "table":
        return [1.0]
    rates = sorted(sweep.advise.rates)
    if len(rates) == 1:
        return rates
    return sorted([*rates, *(rates[-1] * by for by in EXTENSIONS), *(rates[0] / by for by in EXTENSIONS)])


def _parent(trial: PlannedTrial) -> PlannedTrial:
    """The trial with checkpoints that all stay: on the evaluation grid and few, unless the file spaces them itself."""
    config = trial.config
    every = config.evaluation.every_samples
    own = every * math.ceil(config.budget_samples / every / MOST_CHECKPOINTS)
    spacing = config.execution.checkpoint_every_samples or own
    num = math.ceil(config.budget_samples / spacing)
    kept = {"checkpoint_every_samples": spacing, "checkpoints_kept": max(num, 1) + 1}
    execution = config.execution.model_copy(update=kept)
    return with_config(trial, config.model_copy(update={"execution": execution}))


def branch_trial(study: Study, item: Mapping[str, Any], start: int) -> PlannedTrial:
    """The branch that is asked for: from the checkpoint at `start`, for as many samples as asked for."""
    trial = find(study.plan, item)
    told = {name: item.get(name) for name in ("trial", "moments", "noise_scale")} | {"at_samples": start}
    changed = {"branch": told, "budget_samples": start + item["samples"], "stop_past_target_frac": None}
    config = TrialConfig.model_validate(trial.config.model_dump() | changed)
    axes = {**trial.axes, "branch_of": trial.arm, "branch_at": start}
    return with_config(replace(trial, arm=f"{trial.arm}-b{start}", axes=axes), config)


def as_begun(existing: Plan | None, branch: PlannedTrial) -> PlannedTrial:
    """The branch as it was begun, where it was: noise scale and length are estimates, which change between calls."""

    def place(trial: PlannedTrial) -> tuple[Any, ...]:
        told = trial.config.branch
        return trial.arm, trial.seed, told and (told.trial, told.at_samples, told.moments)

    return next((trial for trial in (existing.trials if existing else ()) if place(trial) == place(branch)), branch)


def speed_trials(study: Study, arm: str, gen_batches: Sequence[int]) -> list[PlannedTrial]:
    """The arm with other numbers of places in flight."""
    trial = next(trial for trial in study.plan.trials if trial.arm == arm)
    found = []
    for size in gen_batches:
        batch = trial.config.batch.model_copy(update={"gen_batch": size})
        axes = {**trial.axes, "speed_of": arm, "batch.gen_batch": size}
        named = replace(trial, arm=f"{arm}-gen{size}", axes=axes)
        found.append(with_config(named, trial.config.model_copy(update={"batch": batch})))
    return found


def extended(plan: Plan, name: str, question: str, existing: Plan | None, more: Sequence[PlannedTrial]) -> Plan:
    """The plan of a sweep beside `plan`, with the trials it had and more."""
    trials = {trial.trial_id: trial for trial in (*(existing.trials if existing else ()), *more)}
    kept = tuple(trials.values())
    return Plan(name, question, kept[0].arm, plan.target, kept)


def find(plan: Plan, item: Mapping[str, Any]) -> PlannedTrial:
    """The trial of an arm and seed. InputError where the plan has none."""
    for trial in plan.trials:
        if (trial.arm, trial.seed) == (item["arm"], item["seed"]):
            return trial
    raise InputError(f"advice.json asks for {item['arm']} with seed {item['seed']}, which is not in the plan")
