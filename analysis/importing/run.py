"""What a reader of another system's log is told and what it gives: the seam between the readers and the writer.

A reader is a module of this package with

    def looks_like(path: Path) -> bool: ...
    def read(path: Path, options: Options) -> list[ImportedRun]: ...

registered in `formats.py`. It knows its system's units and names, and nothing of our files. A file or a folder that it
cannot use is an InputError: no rows, a batch that is neither in the log nor in the options. Two steps that every reader
takes are here: `last_attempt` and `batch_of`. A log format that may hold runs of several systems (TensorBoard, W&B)
hands its rows and its configuration to the system whose names it finds: `verl.run_of(History(...), options)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.errors import InputError


@dataclass(frozen=True)
class Options:
    """What the user says of the runs; what is None or empty the log must say itself.

    columns: our field -> name in the log, for tables. seed and lr come from a list of runs.
    """

    num_prompts: int | None = None
    group_size: int | None = None
    lr: float | None = None
    seed: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """The rows of one run under a system's own names, before anyone says what they mean.

    rows: (step as logged, metric -> number), in the order of writing, all attempts. config: the system's nested
    configuration, {} where the log has none. notes: what reading the file already had to assume or drop.
    """

    name: str
    source: Path
    rows: Sequence[tuple[int, Mapping[str, float]]]
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Update:
    """One rollout batch that was trained on.

    step: rollout batches so far, this one included: 1 is the first, whatever the log calls it; gaps are fine.
    samples_before, samples_trained: N of the policy that sampled the batch, and after training on it. Responses.
    scores: training scores of this batch by the log's own names. They are of the policy *before* the update: the writer
        makes a point of the curve at samples_before of each.
    metrics: by our names (results/README.md: reward/mean, grad/actor_norm before clipping, response/length_mean, ...).
    seconds: phase -> seconds that count into q: generate, reward, train, sync, and undivided for what the log does not
        split. Empty: not recorded.
    apart_s: seconds of `evaluate` and `checkpoint`, which do not count into q.
    optimizer_steps: of this update alone. tokens: response tokens of the batch.
    samples_generated: so far, dropped ones included; None: those trained on.
    """

    step: int
    samples_before: int
    samples_trained: int
    scores: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    apart_s: Mapping[str, float] = field(default_factory=dict)
    optimizer_steps: int = 1
    samples_generated: int | None = None
    tokens: float | None = None
    lr: float | None = None
    critic_lr: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """Validation scores, by the log's own names, of the policy after `samples_trained` responses."""

    samples_trained: int
    scores: Mapping[str, float]


@dataclass(frozen=True)
class ImportedRun:
    """One run: one arm with one seed.

    updates and evals: increasing in samples_trained, one attempt each, neither empty together.
    curves: names of the scores in `evals` and of the training scores in `updates` that a curve can be made of, best
        first; validation scores precede training scores.
    num_prompts (P), group_size (G): of one rollout batch; lr, critic_lr: the rates applied; None: not known.
    axes: whatever else may differ between runs and belongs to the arm (mini_batch_size, model, kl, ...); plain values.
    seed: None: the log has none. name: for people, from the file or the run. arm: where the user or the log names it.
    assumptions: a sentence each: what the reader took for granted, dropped or could not know.
    """

    name: str
    source: Path
    system: str
    num_prompts: int
    group_size: int
    updates: tuple[Update, ...]
    evals: tuple[Evaluation, ...]
    curves: tuple[str, ...]
    algorithm: str = "unknown"
    lr: float | None = None
    critic_lr: float | None = None
    seed: int | None = None
    arm: str | None = None
    axes: Mapping[str, Any] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()

    @property
    def train_batch(self) -> int:
        """B = P * G, responses."""
        return self.num_prompts * self.group_size


def last_attempt(steps: Sequence[float]) -> list[int]:
    """Indices of the rows that count, in order: a row of step s replaces every earlier row of step s or later.

    A run that was resumed went on from a checkpoint, so what an earlier attempt wrote from there on belongs to a policy
    that was thrown away. `steps` is in the order of writing.

    >>> last_attempt([1, 2, 3, 4, 3, 4, 5]), last_attempt([0, 1, 2, 0, 1])
    ([0, 1, 4, 5, 6], [3, 4])
    """
    kept: list[int] = []
    for index, step in enumerate(steps):
        while kept and steps[kept[-1]] >= step:
            kept.pop()
        kept.append(index)
    return kept


def batch_of(
    source: Path, options: Options, num_prompts: int | None, group_size: int | None, hint: str = ""
) -> tuple[int, int]:
    """(P, G): what the options say, else what the log says (the arguments); InputError where neither does.

    Raises InputError too where both say something else: one of them has the wrong unit. `hint` is what the log tells of
    the missing ones, for the error.
    """
    logged = {"num_prompts": num_prompts, "group_size": group_size}
    said = {"num_prompts": options.num_prompts, "group_size": options.group_size}
    option = {"num_prompts": "--num-prompts", "group_size": "--group-size"}
    missing = [name for name in logged if logged[name] is None and said[name] is None]
    if missing:
        raise InputError(
            f"{source} does not say {' and '.join(missing)}, without which samples cannot be counted"
            f"{f' ({hint})' if hint else ''}; give {' and '.join(option[name] for name in missing)}: prompts a rollout "
            "batch, responses per prompt"
        )
    for name in logged:
        if said[name] is not None and logged[name] is not None and said[name] != logged[name]:
            raise InputError(
                f"{option[name]} {said[name]}: {source} itself says {name} = {logged[name]}; leave the option out"
            )
    found = [int(said[name] or logged[name] or 0) for name in logged]
    if min(found) < 1:
        raise InputError(f"{source}: num_prompts {found[0]} and group_size {found[1]} must be counts, at least 1")
    return found[0], found[1]
