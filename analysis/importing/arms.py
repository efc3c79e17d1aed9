"""The trials of an imported sweep: which arm each is of, and its seed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.errors import InputError
from analysis.records import read_object

# Settings that have an axis of their own; all others are whatever the readers found.
RATES = ("algorithm", "lr", "critic_lr")


@dataclass(frozen=True)
class Stored:
    """A trial as config.json tells of it: P, G, `settings` (algorithm, lr, critic_lr and the reader's axes)."""

    trial_id: str
    config: Mapping[str, Any]
    arm: str = ""
    seed: int = 0

    @property
    def imported(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.config["imported"]
        return found

    @property
    def batch(self) -> tuple[int, int]:
        return self.config["batch"]["num_prompts"], self.config["batch"]["group_size"]

    @property
    def train_batch(self) -> int:
        return self.batch[0] * self.batch[1]

    @property
    def settings(self) -> dict[str, Any]:
        optimizer = self.config["optimizer"]
        rates = {name: _rounded(optimizer[name]) for name in ("lr", "critic_lr")}
        return {"algorithm": self.config["algorithm"]["name"], **rates, **self.imported["axes"]}


def stored_trials(folder: Path) -> list[Stored]:
    """The imported trials of a sweep's folder; InputError where it holds what an import would replace."""
    planned = (folder / "plan.json").exists()
    if planned and not read_object(folder / "plan.json").get("imported"):
        raise InputError(f"{folder} holds a sweep that was not imported: name another --out")
    found = []
    for trial in sorted(folder.glob("trials/*")):
        value = read_object(trial / "config.json")
        if not planned or not isinstance(value.get("imported"), dict) or "batch" not in value:
            raise InputError(
                f"{trial} is there but no imported run that can be read: move it away, or name another --out"
            )
        found.append(Stored(trial.name, value))
    return found


def refuse_copies(trials: Sequence[Stored]) -> None:
    seen: dict[str, Stored] = {}
    for trial in trials:
        mark = trial.imported["fingerprint"]
        other = seen.setdefault(mark, trial) if mark else trial
        if other is not trial:
            sources = f"{other.imported['source']} and {trial.imported['source']}"
            raise InputError(f"{sources} are one run (their scores are the same): import one of them")


def named(trials: Sequence[Stored]) -> tuple[list[Stored], list[str]]:
    """(trials with their arms, what was assumed).

    An arm is named after its batch and those settings that differ among the runs of that batch; where algorithms differ
    between batches, after its algorithm too. Raises InputError where an arm named by the user has several batches.
    """
    algorithms = {trial.settings["algorithm"] for trial in trials}
    found = []
    for trial in trials:
        others = [other.settings for other in trials if other.batch == trial.batch]
        names = [name for name in trial.settings if len({_shown(other.get(name)) for other in others}) > 1]
        if len(algorithms) > 1 and "algorithm" not in names:
            names.insert(0, "algorithm")
        parts = [f"P{trial.batch[0]}-G{trial.batch[1]}", *(_part(name, trial.settings.get(name)) for name in names)]
        found.append(replace(trial, arm=trial.imported["arm"] or "-".join(parts)))
    first: dict[str, Stored] = {}
    for trial in found:
        other = first.setdefault(trial.arm, trial)
        if other.batch != trial.batch:
            a, b = (f"P = {one.batch[0]}, G = {one.batch[1]}" for one in (other, trial))
            raise InputError(f"arm {trial.arm} has runs with {a} and with {b}: an arm is one batch")
    return found, _confounds(found)


def _part(name: str, value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value).rstrip("/").rpartition("/")[2]
    return slug(text if name in ("algorithm", "model") else f"{name}{text}")


def slug(text: str) -> str:
    """A text as part of a name of a folder or an arm.

    >>> slug("runs/P64 G8/train"), slug("..")
    ('runs-P64-G8-train', 'run')
    """
    return re.sub(r"[^\w.=+]+", "-", text).strip("-.")[:100] or "run"


def varied(trials: Sequence[Stored]) -> list[str]:
    """Settings without an axis of their own that differ among runs of one batch: those tell arms apart."""
    names = dict.fromkeys(name for trial in trials for name in trial.settings if name not in RATES)
    batches = {trial.batch for trial in trials}
    return [
        name
        for name in names
        if len({(trial.batch, _shown(trial.settings.get(name))) for trial in trials}) > len(batches)
    ]


def _confounds(trials: Sequence[Stored]) -> list[str]:
    """A sentence for each setting that differs between runs besides the batch and the rates.

    The mini-batch may grow with the batch: the optimizer steps of a rollout batch are the same then.
    """
    notes = []
    for name in dict.fromkeys(name for trial in trials for name in trial.settings if name not in RATES):
        values = [trial.settings.get(name) for trial in trials]
        if len(set(map(_shown, values))) == 1:
            continue
        shares = {
            trial.settings.get(name, math.nan) / trial.train_batch for trial in trials if name == "mini_batch_size"
        }
        if len(shares) == 1:
            continue
        by_arm: dict[str, set[str]] = {}
        for trial, value in zip(trials, values, strict=True):
            by_arm.setdefault(trial.arm, set()).add(_shown(value))
        parts = ", ".join(f"{' and '.join(sorted(found))} in {arm}" for arm, found in sorted(by_arm.items()))
        notes.append(f"Besides the batch, runs differ in {name}: {parts}.")
    return notes


def _shown(value: Any) -> str:
    return "unknown" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def numbered(trials: Sequence[Stored]) -> tuple[list[Stored], list[str]]:
    """(trials with seeds, by batch, arm and seed; what was assumed).

    The runs of an arm that do not all state a seed of their own are numbered in the order of their paths.
    """
    found, unstated = [], []
    for arm in dict.fromkeys(trial.arm for trial in sorted(trials, key=lambda trial: (trial.train_batch, trial.arm))):
        own = sorted((t for t in trials if t.arm == arm), key=lambda t: (t.imported["source"], t.trial_id))
        seeds = [trial.imported["seed"] for trial in own]
        if None in seeds or len(set(seeds)) < len(seeds):
            seeds = list(range(len(own)))
            unstated += [arm] if len(own) > 1 else []
        seeded = [replace(trial, seed=seed) for trial, seed in zip(own, seeds, strict=True)]
        found += sorted(seeded, key=lambda trial: trial.seed)
    text = "no seeds of their own are stated: runs are numbered in the order of their paths and taken as independent."
    return found, [f"In {', '.join(unstated)} {text}"] if unstated else []


def _rounded(rate: float | None) -> float | None:
    """A rate to six digits: logs multiply it by units; one that rounded to 0 is not known."""
    return float(f"{rate:.6g}") if rate else None
