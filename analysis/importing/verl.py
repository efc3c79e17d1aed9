"""Runs of verl, from its console log or its JSONL file logger; `run_of` also for its rows in W&B or TensorBoard.

A row is one rollout batch of P*G responses. Its training scores are of the policy before its update, its validation
scores (`val-core/`, `val-aux/`, once `val/`) of the policy after it. Steps count from 1, once from 0. `actor/grad_norm`
is the mean over the optimizer steps of a row, before clipping.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from analysis.errors import InputError
from analysis.importing import verl_config
from analysis.importing.run import Evaluation, History, ImportedRun, Options, Update, last_attempt
from analysis.importing.verl_clock import apart_of, clock_notes, inside_step, seconds_of, timings_of
from analysis.importing.verl_log import history_of, is_console_log, is_file_log

TRAINING_SCORES = ("critic/score/mean", "critic/rewards/mean")
# Our name -> verl's, the one of older versions last.
METRICS = {
    "reward/mean": ("critic/score/mean",),
    "response/length_mean": ("response_length/mean",),
    "response/truncated_frac": ("response_length/clip_ratio",),
    "grad/actor_norm": ("actor/grad_norm",),
    "grad/critic_norm": ("critic/grad_norm",),
    "policy/entropy": ("actor/entropy", "actor/entropy_loss"),
    "policy/clip_frac": ("actor/pg_clipfrac",),
    "critic/clip_frac": ("critic/vf_clipfrac",),
    "critic/explained_variance": ("critic/vf_explained_var",),
    "loss/actor": ("actor/pg_loss",),
    "loss/critic": ("critic/vf_loss",),
}
Row = tuple[int, Mapping[str, float]]


def looks_like(path: Path) -> bool:
    """Whether a file is a log of verl."""
    return path.is_file() and (is_file_log(path) or is_console_log(path))


def read(path: Path, options: Options) -> list[ImportedRun]:
    """The one run of a log."""
    return [run_of(history_of(path), options)]


def speaks(names: Iterable[str]) -> bool:
    """Whether metric names, of whatever logger, are verl's."""
    return any(name.startswith(("timing_s/", "val-core/", "actor/pg_", "critic/score/")) for name in names)


def run_of(history: History, options: Options) -> ImportedRun:
    """The run that rows under verl's names are; raises InputError where none of them trains or the batch is unknown."""
    trained = [index for index, row in enumerate(history.rows) if _trains(row)]
    if not trained:
        raise InputError(f"{history.source} has no training rows of verl, only {len(history.rows)} of validation")
    kept = [trained[i] for i in last_attempt([_step(history.rows[i]) for i in trained])]
    rows = [history.rows[i] for i in kept]
    metrics = [row[1] for row in rows]
    config = history.config
    num_prompts, group_size, notes = verl_config.batch(history, metrics, options)
    first = 0 if min(_step(history.rows[i]) for i in trained) == 0 or "timing/gen" in metrics[0] else 1
    train_batch = num_prompts * group_size
    before = {i: (_step(history.rows[i]) - first) * train_batch for i in trained}
    updates = _updates(metrics, [before[i] for i in kept], config, (num_prompts, group_size))
    evals = _evaluations(history.rows, set(kept), before, train_batch)
    lr, critic_lr = verl_config.rates(config, metrics, options)
    notes += [
        *history.notes,
        *_counting_notes(rows, first, len(trained) - len(kept)),
        *clock_notes(list(map(timings_of, metrics)), [update.seconds for update in updates]),
        *verl_config.step_notes(config, num_prompts, group_size),
    ]
    return ImportedRun(
        name=history.name,
        source=history.source,
        system="verl",
        num_prompts=num_prompts,
        group_size=group_size,
        updates=tuple(updates),
        evals=tuple(evals),
        curves=_curves(evals, metrics),
        algorithm=verl_config.algorithm(config, metrics),
        lr=lr,
        critic_lr=critic_lr,
        seed=options.seed if options.seed is not None else verl_config.seed(config),
        axes=verl_config.axes(config, group_size),
        assumptions=tuple(notes),
    )


def _trains(row: Row) -> bool:
    return any(name.startswith(("actor/", "critic/", "response_length/", "timing_s/gen")) for name in row[1])


def _step(row: Row) -> int:
    """The trainer's own step, where the logger counts otherwise."""
    return int(row[1].get("training/global_step", row[0]))


def _updates(
    rows: Sequence[Mapping[str, float]], before: Sequence[int], config: Mapping[str, object], batch: tuple[int, int]
) -> list[Update]:
    num_prompts, group_size = batch
    train_batch = num_prompts * group_size
    optimizer_steps = verl_config.optimizer_steps(config, num_prompts) or 1
    gen_prompts = verl_config.at(config, "data.gen_batch_size") or num_prompts
    inside = inside_step(list(map(timings_of, rows)))
    found, dropped = [], 0
    for metrics, samples in zip(rows, before, strict=True):
        sampled = int(metrics.get("train/num_gen_batches", 0) * gen_prompts * group_size)
        dropped += max(sampled - train_batch, 0)
        timings = timings_of(metrics)
        length = metrics.get("response_length/mean")
        found.append(
            Update(
                step=samples // train_batch + 1,
                samples_before=samples,
                samples_trained=samples + train_batch,
                samples_generated=samples + train_batch + dropped,
                scores={name: metrics[name] for name in TRAINING_SCORES if name in metrics},
                metrics={our: metrics[n] for our, names in METRICS.items() for n in names[::-1] if n in metrics},
                seconds=seconds_of(timings, inside),
                apart_s=apart_of(timings),
                optimizer_steps=optimizer_steps,
                tokens=None if length is None else round(length * train_batch),
                lr=verl_config.rate(metrics, "actor"),
                critic_lr=verl_config.rate(metrics, "critic"),
            )
        )
    return found


def _evaluations(rows: Sequence[Row], kept: set[int], before: Mapping[int, int], train_batch: int) -> list[Evaluation]:
    """Validation scores by the N of their policy; of one N the last counts.

    before: samples before each training row, by index, those of superseded attempts too. A row that only validates
    belongs to the end of the training row before it or to the start of the one after it, whichever its step is nearer
    to. One that a later attempt went back behind is dropped.
    """
    found: dict[int, dict[str, float]] = {}
    order = sorted(before)
    for index, (step, metrics) in enumerate(rows):
        scores = {name: value for name, value in metrics.items() if re.match(r"val(-core|-aux)?/", name)}
        if not scores or (index in before and index not in kept):
            continue
        if index in before:
            samples = before[index] + train_batch
        else:
            last = next((before[i] + train_batch for i in reversed(order) if i < index), None)
            following = next((before[i] for i in order if i > index), None)
            places = [place for place in (last, following) if place is not None]
            samples = min(places, key=lambda place: abs(place - step * train_batch))
        if not any(i > index and before[i] + train_batch <= samples for i in kept):
            found[samples] = found.get(samples, {}) | scores
    return [Evaluation(samples, found[samples]) for samples in sorted(found)]


def _curves(evals: Sequence[Evaluation], rows: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    """Scores a curve can be made of: means of core validation first, then training, auxiliary validation last."""
    names = sorted({name for one in evals for name in one.scores if not name.startswith("val-aux/num_turns/")})
    core = [name for name in names if name.startswith(("val-core/", "val/"))]
    means = [name for name in core if "/mean@" in name or name.startswith("val/test_score/")]
    training = [name for name in TRAINING_SCORES if any(name in metrics for metrics in rows)]
    return tuple(dict.fromkeys([*means, *core, *training, *names]))


def _counting_notes(rows: Sequence[Row], first: int, superseded: int) -> list[str]:
    steps = [_step(row) for row in rows]
    notes = [
        f"A row is one rollout batch, counted from {first}; its training score is of the policy before its update."
    ]
    if superseded:
        notes.append(f"{superseded} rows were made again by a later attempt; the later ones count.")
    if steps[0] > first:
        notes.append(f"The log begins at step {steps[0]}: the samples before it are counted by the number of the step.")
    missing = steps[-1] - steps[0] + 1 - len(steps)
    if missing:
        notes.append(f"{missing} rows are missing: their samples are counted, their scores and seconds are unknown.")
    return notes
