"""From a sweep file to its trials: expand arms and seeds, scale learning rates, name everything. Pure."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import ValidationError

from harness.algorithm.config import ActorCriticConfig
from harness.arm_names import arm_names, digest, leaves_of
from harness.config import Sections, SweepConfig, TrialConfig, flatten
from harness.errors import InputError
from harness.explain import closest, explain, variants
from harness.optimizer import resolve_critic, resolve_optimizer

PLAN_FORMAT = 1
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")  # what becomes a path stays inside the results folder
# These carry their own part of an arm's name and their own axis.
_NAMED = ("batch.num_prompts", "batch.group_size", "optimizer.lr_rule")


@dataclass(frozen=True)
class PlannedTrial:
    """One arm with one seed. `axes` is flat and holds what tells the arms apart; analysis reads it."""

    trial_id: str
    arm: str
    seed: int
    axes: Mapping[str, Any]
    config: TrialConfig


@dataclass(frozen=True)
class Target:
    """The metric of the evaluation records and the value it has to reach."""

    metric: str
    value: float


@dataclass(frozen=True)
class Plan:
    """Everything a sweep will run, seed by seed, so that an interrupted sweep has every arm."""

    sweep: str
    question: str
    reference_arm: str
    target: Target
    trials: tuple[PlannedTrial, ...]

    def to_json(self) -> str:
        """The content of plan.json."""
        data = {
            "format": PLAN_FORMAT,
            "sweep": self.sweep,
            "question": self.question,
            "reference_arm": self.reference_arm,
            "target": asdict(self.target),
            "trials": [vars(trial) | {"config": trial.config.model_dump(mode="json")} for trial in self.trials],
        }
        return json.dumps(data, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read plan.json back. Raises InputError that says what is unreadable in it."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InputError(
                f"plan.json: not valid JSON ({error}); 'plan' with the sweep file writes it anew"
            ) from None
        if not isinstance(data, dict) or data.get("format") != PLAN_FORMAT:
            found = data.get("format") if isinstance(data, dict) else None
            raise InputError(f"plan.json: format {found!r}; this version reads format {PLAN_FORMAT}")
        try:
            plan = cls(
                sweep=data["sweep"],
                question=data.get("question", ""),
                reference_arm=data["reference_arm"],
                target=Target(**data["target"]),
                trials=tuple(
                    PlannedTrial(**trial | {"config": TrialConfig.model_validate(trial["config"])})
                    for trial in data["trials"]
                ),
            )
        except ValidationError as error:
            raise InputError(f"plan.json: {explain(error, TrialConfig)}") from None
        except (KeyError, TypeError) as error:
            raise InputError(f"plan.json: a field is missing or wrong ({error})") from None
        for field, name in [("sweep", plan.sweep), *(("trial_id", trial.trial_id) for trial in plan.trials)]:
            if not isinstance(name, str) or not _FOLDER.fullmatch(name):
                raise InputError(f"plan.json: {field}: {name!r}; needs a plain folder name, such as P8-G8-sqrt-s0")
        return plan


@dataclass(frozen=True)
class Arm:
    """One entry of `arms` multiplied out. `settings` is before the learning-rate rule."""

    entry: int
    overrides: Mapping[str, Any]
    settings: Sections


def make_plan(sweep: SweepConfig) -> Plan:
    """Resolve every arm and seed. Raises InputError where an arm cannot run or the arms cannot be compared.

    kappa = B / B_ref; an arm's `optimizer.lr` (the file's, or its own) is the rate its rule starts from.
    """
    arms = list(expand(sweep))
    _refuse_duplicates(arms)
    _refuse_different_grids(arms)
    varied = _varied_names(arms)
    names = arm_names([arm.settings for arm in arms], varied)
    reference = _reference(sweep, arms, names)
    reference_batch = arms[reference].settings.batch.train_batch
    trials = [
        _trial(arm, name, seed, reference_batch, varied)
        for seed in sweep.seeds
        for arm, name in zip(arms, names, strict=True)
    ]
    evaluation = arms[reference].settings.evaluation
    target = Target(evaluation.metric, evaluation.target)
    return Plan(sweep.sweep, sweep.question, names[reference], target, tuple(trials))


def select_trials(plan: Plan, only: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[PlannedTrial]:
    """The trials of the named arms and seeds; an empty choice means all."""
    arms = list(dict.fromkeys(trial.arm for trial in plan.trials))
    for name in only:
        if name not in arms:
            raise InputError(f"--only {name}: no such arm{closest(name, arms, 'arms: ')}")
    planned_seeds = sorted({trial.seed for trial in plan.trials})
    for seed in seeds:
        if seed not in planned_seeds:
            raise InputError(
                f"--seeds {seed}: not in the plan, whose seeds are {', '.join(map(str, planned_seeds))}; "
                f"the field seeds adds some, for instance --set seeds=[{', '.join(map(str, [*planned_seeds, seed]))}]"
            )
    return [t for t in plan.trials if (not only or t.arm in only) and (not seeds or t.seed in seeds)]


def check_extends(existing: Plan | None, new: Plan, started: Collection[str], folder: str) -> None:
    """Refuse `new` where it would orphan a trial that has records; `started` holds the ids of those in `folder`."""
    known = {trial.trial_id for trial in new.trials}
    orphans = sorted(set(started) - known)
    if not orphans:
        return
    old = next((t for t in (existing.trials if existing else ()) if t.trial_id in orphans), None)
    raise InputError(
        f"{folder} was made by another plan: {len(orphans)} of its trials with records are not in this one; "
        f"{_difference(old, new) if old else f'the first is {orphans[0]}'}. To keep both, give the sweep another name "
        f"(--set sweep=NAME) or another folder (--results DIR); to go on with the old one, undo the change; "
        f"to discard it, delete {folder}"
    )


def _difference(old: PlannedTrial, new: Plan) -> str:
    """The first fields in which a trial differs from the one of the same arm and seed in the new plan."""
    twin = next((t for t in new.trials if (t.arm, t.seed) == (old.arm, old.seed)), None)
    if twin is None:
        return f"the first is {old.arm} with seed {old.seed}"
    before, after = (flatten(trial.config.model_dump(mode="json")) for trial in (old, twin))
    fields = [name for name in before | after if before.get(name) != after.get(name)]
    shown = ", ".join(f"{name} {before.get(name)} -> {after.get(name)}" for name in fields[:3])
    return f"{old.arm} with seed {old.seed} differs in {shown}" + (" and more" if len(fields) > 3 else "")


def with_config(trial: PlannedTrial, config: TrialConfig) -> PlannedTrial:
    """The trial, named for another configuration."""
    return replace(trial, trial_id=f"{trial.arm}-s{trial.seed}-{digest(config)}", config=config)


def expand(sweep: SweepConfig) -> Iterator[Arm]:
    """Multiply out the lists of each entry, the last name fastest, and validate the result."""
    base = {
        name: value for name, value in sweep.model_dump(exclude_unset=True).items() if name in Sections.model_fields
    }
    for entry, given in enumerate(sweep.arms):
        dotted = flatten(given)
        choices = [value if isinstance(value, list | tuple) else [value] for value in dotted.values()]
        for name, values in zip(dotted, choices, strict=True):
            if not values:
                raise InputError(f"arms[{entry}].{name}: an empty list makes no arm; needs at least one value")
        for values in itertools.product(*choices):
            overrides = dict(zip(dotted, values, strict=True))
            yield Arm(entry, overrides, _settings(base, overrides, entry, sweep))


def _settings(base: Mapping[str, Any], overrides: Mapping[str, Any], entry: int, sweep: SweepConfig) -> Sections:
    """The sweep's sections with an arm's overrides over them; another task or algorithm keeps what it shares."""
    data: dict[str, Any] = json.loads(json.dumps(base))
    for section, info in Sections.model_fields.items():
        kinds = variants(info)
        if len(kinds) > 1:
            name = str(overrides.get(f"{section}.name", getattr(sweep, section).name))
            own = kinds[name].model_fields if name in kinds else data.get(section, {})
            kept = {key: value for key, value in data.get(section, {}).items() if key in own}
            data[section] = kept | {"name": name}
    for name, value in overrides.items():
        *outer, last = name.split(".")
        target = data
        for part in outer:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise InputError(f"arms[{entry}]: {name}: {part} holds no names")
        target[last] = value
    try:
        return Sections.model_validate(data)
    except ValidationError as error:
        hint = _list_hint(error, overrides)
        raise InputError(f"arms[{entry}]: {explain(error, Sections)}{hint}") from None


def _list_hint(error: ValidationError, overrides: Mapping[str, Any]) -> str:
    """A list-valued field loses its outer list to the multiplication: say how to write it."""
    for detail in error.errors():
        name = ".".join(map(str, detail["loc"]))
        if detail["type"] == "tuple_type" and name in overrides:
            return f" (lists in an arm are multiplied out: write one list value nested, {name}: [[...]])"
    return ""


def _refuse_duplicates(arms: Sequence[Arm]) -> None:
    seen: dict[str, Arm] = {}
    for arm in arms:
        first = seen.setdefault(arm.settings.model_dump_json(), arm)
        if first is not arm:
            what = ", ".join(f"{name}: {value}" for name, value in arm.overrides.items())
            raise InputError(
                f"arms[{arm.entry}]: {{{what}}} is the same arm as one of arms[{first.entry}]; each arm may occur once"
            )


def _refuse_different_grids(arms: Sequence[Arm]) -> None:
    for arm in arms[1:]:
        if arm.settings.evaluation != arms[0].settings.evaluation:
            name = next(name for name in [*arm.overrides, *arms[0].overrides] if name.startswith("evaluation."))
            raise InputError(
                f"arms[{arm.entry}].{name}: all arms share one evaluation grid and target; set it for the sweep"
            )


def _varied_names(arms: Sequence[Arm]) -> list[str]:
    """Dotted names that some arm sets and in whose resolved value the arms differ. A table of rates shows in `lr`."""
    given = dict.fromkeys(
        name for arm in arms for name in arm.overrides if name not in _NAMED and ".lr_table." not in name
    )
    leaves = [leaves_of(arm.settings) for arm in arms]
    return [name for name in given if len({json.dumps(leaf.get(name)) for leaf in leaves}) > 1]


def _reference(sweep: SweepConfig, arms: Sequence[Arm], names: Sequence[str]) -> int:
    """The index of the one arm that has every value of `reference`."""
    leaves = [leaves_of(arm.settings) for arm in arms]
    wanted = flatten(sweep.reference)
    for name, value in wanted.items():
        values = list(dict.fromkeys(json.dumps(leaf[name]) for leaf in leaves if name in leaf))
        if not values:
            raise InputError(f"reference.{name}: unknown{closest(name, {key for leaf in leaves for key in leaf})}")
        if not any(leaf.get(name) == value for leaf in leaves):
            raise InputError(f"reference.{name}: no arm has {value!r}; the arms have {', '.join(values)}")
    matches = [i for i, leaf in enumerate(leaves) if all(leaf.get(name) == value for name, value in wanted.items())]
    if len(matches) != 1:
        which = ", ".join(names[i] for i in matches) or "none"
        raise InputError(
            f"reference: {wanted} has to match exactly one arm, but matches {which}; "
            f"change or add a dotted name, for instance optimizer.lr_rule"
        )
    return matches[0]


def _trial(arm: Arm, name: str, seed: int, reference_batch: int, varied: Sequence[str]) -> PlannedTrial:
    settings = arm.settings
    try:
        batches = settings.batch.train_batch, reference_batch
        critic = settings.algorithm.critic if isinstance(settings.algorithm, ActorCriticConfig) else None
        resolved = {
            "optimizer": resolve_optimizer(settings.optimizer, *batches),
            "critic_optimizer": resolve_critic(settings.optimizer, critic, *batches),
            "seed": seed,
        }
        config = TrialConfig.model_validate(settings.model_dump() | resolved)
    except ValidationError as error:
        raise InputError(f"arm {name}: {explain(error, TrialConfig)}") from None
    except InputError as error:
        raise InputError(f"arm {name}: {error}") from None
    axes: dict[str, Any] = {
        "algorithm": config.algorithm.name,
        "num_prompts": config.batch.num_prompts,
        "group_size": config.batch.group_size,
        "train_batch": config.batch.train_batch,
        "lr": config.optimizer.lr,
        "lr_rule": config.optimizer.lr_rule,
    }
    if config.critic_optimizer is not None:
        axes |= {"critic_lr": config.critic_optimizer.lr, "critic_lr_rule": config.critic_optimizer.lr_rule}
    leaves = leaves_of(settings)
    axes |= {"lr_ref" if key == "optimizer.lr" else key: leaves.get(key) for key in varied if key != "algorithm.name"}
    return PlannedTrial(f"{name}-s{seed}-{digest(config)}", name, seed, axes, config)
