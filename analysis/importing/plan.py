"""The plan of an imported sweep, from the trials in its folder: reference, the curve's metric, rules of rates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.errors import InputError
from analysis.importing.arms import Stored, named, numbered, refuse_copies, varied
from analysis.records import read_object

FEWEST_POINTS = 5


@dataclass(frozen=True)
class Choices:
    """What the user chose for the whole sweep; None: a rule chooses."""

    score: str | None = None
    target: float | None = None
    reference: str | None = None


def stored_choices(folder: Path) -> Choices:
    """What the user chose when this sweep was imported before."""
    found = read_object(folder / "plan.json").get("imported")
    return Choices(**found) if isinstance(found, dict) else Choices()


def plan_of(sweep: str, trials: Sequence[Stored], choices: Choices) -> dict[str, Any]:
    """plan.json; raises InputError where two logs are one run, or no score is common to all runs."""
    refuse_copies(trials)
    in_arms, notes = named(trials)
    planned, seed_notes = numbered(in_arms)
    arms = {trial.arm: trial for trial in reversed(planned)}
    reference = choices.reference or min(arms, key=lambda arm: (arms[arm].train_batch, arm))
    if reference not in arms:
        raise InputError(f"--reference {reference}: no such arm; there are {', '.join(sorted(arms))}")
    metric, metric_note = _metric(planned, choices.score)
    own = [metric_note]
    if choices.reference is None and len(arms) > 1:
        own.append(f"The reference is the smallest batch, {reference}; --reference names another.")
    rules = _rules(arms, reference)
    extra = varied(planned)
    systems = sorted({trial.imported["system"] for trial in planned})
    return {
        "format": 1,
        "sweep": sweep,
        "question": f"Runs of {' and '.join(systems)}: how many more samples does a batch need, and does it pay?",
        "reference_arm": reference,
        "target": {"metric": metric, "value": choices.target},
        "imported": {"score": choices.score, "target": choices.target, "reference": choices.reference},
        "assumptions": [*own, *notes, *seed_notes, *_reader_notes(planned)],
        "trials": [
            {
                "trial_id": trial.trial_id,
                "arm": trial.arm,
                "seed": trial.seed,
                "axes": _axes(arms[trial.arm], rules[trial.arm], extra),
                "config": trial.config,
            }
            for trial in planned
        ],
    }


def _metric(trials: Sequence[Stored], asked: str | None) -> tuple[str, str]:
    """(the score that the curves are made of, a sentence that says so).

    The first by the readers' order of preference that every run has at least FEWEST_POINTS of; where none has so many,
    the first that every run has.
    """
    points: list[Mapping[str, int]] = [trial.imported["points"] for trial in trials]
    common = [
        name
        for name in dict.fromkeys(name for found in points for name in found)
        if all(name in found for found in points)
    ]
    if asked is not None and asked not in common:
        raise InputError(f"--score {asked}: not every run has it; all have {', '.join(common) or 'no score in common'}")
    if not common:
        each = "; ".join(
            f"{trial.trial_id}: {', '.join(found) or 'none'}" for trial, found in zip(trials, points, strict=True)
        )
        raise InputError(f"no score is common to all runs ({each}), so they have no curve to compare")
    enough = [name for name in common if min(found[name] for found in points) >= FEWEST_POINTS]
    chosen = asked or (enough or common)[0]
    training = all(chosen in trial.imported["training_scores"] for trial in trials)
    kind = "a training score, of the policy before each update" if training else "a validation score"
    counts = [found[chosen] for found in points]
    amount = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    note = f"The curve is {chosen}, {kind}, {amount} points a run"
    sparse = [name for name in common[: common.index(chosen)] if name not in enough]
    if asked is None and sparse:
        note += f"; {', '.join(sparse)} has fewer than {FEWEST_POINTS}"
    others = [name for name in common if name != chosen]
    return chosen, note + (f"; --score takes {', '.join(others[:4])} instead." if others else ".")


def _rules(arms: Mapping[str, Stored], reference: str) -> dict[str, tuple[str, str]]:
    """arm -> learning-rate rule of (actor, critic), read off the rates.

    An arm with the reference's own batch and rate follows any rule: the most frequent one, the square root first.
    """
    found: dict[str, tuple[str, str]] = {}
    for network, name in enumerate(("lr", "critic_lr")):
        base = arms[reference]
        rules = {arm: _rule(trial, base, name) for arm, trial in arms.items() if trial.train_batch != base.train_batch}
        counts = Counter(rules.values())
        usual = max(counts, key=lambda rule: (counts[rule], rule == "sqrt", rule == "linear"), default="fixed")
        for arm, trial in arms.items():
            same = trial.settings[name] == base.settings[name]
            rule = rules.get(arm, usual if same else "other")
            found[arm] = (rule, "") if network == 0 else (found[arm][0], rule)
    return found


def _rule(trial: Stored, reference: Stored, name: str) -> str:
    rate, base = trial.settings[name], reference.settings[name]
    if rate is None or base is None:
        return "unknown"
    kappa = trial.train_batch / reference.train_batch
    for rule, power in (("fixed", 0.0), ("sqrt", 0.5), ("linear", 1.0)):
        if math.isclose(rate / base, kappa**power, rel_tol=0.02):
            return rule
    return "other"


def _axes(trial: Stored, rules: tuple[str, str], extra: Sequence[str]) -> dict[str, Any]:
    settings = trial.settings
    axes = {
        "algorithm": settings["algorithm"],
        "num_prompts": trial.batch[0],
        "group_size": trial.batch[1],
        "train_batch": trial.train_batch,
        "lr": settings["lr"],
        "lr_rule": rules[0],
    }
    if settings["critic_lr"] is not None:
        axes |= {"critic_lr": settings["critic_lr"], "critic_lr_rule": rules[1]}
    return axes | {name: settings.get(name) for name in extra}


def _reader_notes(trials: Sequence[Stored]) -> list[str]:
    """The readers' sentences, each once, with whom it is of where it is not of all."""
    of: dict[str, list[Stored]] = {}
    for trial in trials:
        for sentence in trial.imported["assumptions"]:
            of.setdefault(sentence, []).append(trial)
    found = []
    for sentence, own in of.items():
        arms = list(dict.fromkeys(trial.arm for trial in own))
        whole = [arm for arm in arms if sum(t.arm == arm for t in own) == sum(t.arm == arm for t in trials)]
        names = arms if whole == arms else [trial.trial_id for trial in own]
        found.append(
            sentence if len(own) == len(trials) else f"{', '.join(names)}: {sentence[0].lower()}{sentence[1:]}"
        )
    return found
