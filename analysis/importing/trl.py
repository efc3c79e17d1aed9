"""Runs of TRL's online trainers (GRPO, RLOO): trainer_state.json, console rows; `run_of` also for W&B and TensorBoard.

Units, from TRL's trainer: `per_device_train_batch_size` counts responses, and so does `generation_batch_size`, which is
what is sampled at once: P * G, G = `num_generations`. It is cut into `steps_per_generation` slices; an optimizer step
takes `gradient_accumulation_steps` of them; all slices come round `num_iterations` times before new ones are sampled. A
row is `logging_steps` optimizer steps: its times and scores are means over them, scores only where something was
sampled.
`step_time` is sampling, rewards, forward and backward passes of one optimizer step, evaluation and checkpoints not.
`grad_norm` is that of the last optimizer step of a row, before clipping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.errors import InputError
from analysis.importing.merge import Row, merged
from analysis.importing.run import Evaluation, History, ImportedRun, Options, Update
from analysis.importing.trl_cadence import Cadence, cadence_of, check_tokens, row_distance
from analysis.importing.trl_files import history_of, is_console_log, is_state

TRAINING_SCORE = "reward"
# Our name -> TRL's, older names last.
METRICS = {
    "reward/mean": ("reward",),
    "reward/zero_variance_frac": ("frac_reward_zero_std",),
    "response/length_mean": ("completions/mean_length", "completion_length"),
    "response/truncated_frac": ("completions/clipped_ratio",),
    "grad/actor_norm": ("grad_norm",),
    "policy/entropy": ("entropy",),
    "policy/clip_frac": ("clip_ratio/region_mean", "clip_ratio"),
    "policy/ref_kl": ("kl",),
    "loss/actor": ("loss",),
}
ALGORITHMS = {"scale_rewards": "grpo", "normalize_advantages": "rloo"}
"""An argument that only one of the trainers has, and the trainer's algorithm."""
# axis -> TRL's name
AXES = {
    "model": "model_name_or_path",
    "loss_type": "loss_type",
    "clip_ratio": "epsilon",
    "kl_coef": "beta",
    "temperature": "temperature",
    "max_response_length": "max_completion_length",
}


def looks_like(path: Path) -> bool:
    """Whether `path` is a trainer_state.json, a folder that a trainer wrote, or a console log with TRL's rows."""
    return is_state(path) or (path.is_file() and is_console_log(path))


def read(path: Path, options: Options) -> list[ImportedRun]:
    """The one run of a log."""
    return [run_of(history_of(path), options)]


def speaks(names: Iterable[str]) -> bool:
    """Whether metric names, of whatever logger, are TRL's."""
    return any(_own(name) in ("frac_reward_zero_std", "completions/mean_length", "completion_length") for name in names)


def run_of(history: History, options: Options) -> ImportedRun:
    """The run that rows under TRL's names are; raises InputError where none of them trains or the batch is unknown."""
    rows, replaced = merged((step, {_own(n): x for n, x in metrics.items()}) for step, metrics in history.rows)
    training = [(step, metrics) for step, metrics in rows if "reward" in metrics or "loss" in metrics]
    if not any("reward" in metrics for _, metrics in training):
        raise InputError(f"{history.source} has no rows of TRL with a reward; {len(rows)} rows without one")
    cadence, notes = cadence_of(history, training, options)
    stretches = _stretches(training, cadence.steps)
    updates = [_update(stretch, rows, cadence) for stretch in stretches]
    if not updates:
        raise InputError(
            f"{history.source} has no whole rollout batch: its rows end at optimizer step {training[-1][0]}, a rollout "
            f"batch is {cadence.steps} of them"
        )
    check_tokens(history.source, training, updates, cadence)
    evals = _evaluations(rows, cadence)
    rates = [metrics["learning_rate"] for _, metrics in training if "learning_rate" in metrics]
    configured = history.config.get("learning_rate")
    lr = configured if isinstance(configured, float) else max(rates, default=None)
    seed = history.config.get("seed")
    return ImportedRun(
        name=history.name,
        source=history.source,
        system="trl",
        num_prompts=cadence.num_prompts,
        group_size=cadence.group_size,
        updates=tuple(updates),
        evals=tuple(evals),
        curves=_curves(evals, training),
        algorithm=next((name for argument, name in ALGORITHMS.items() if argument in history.config), "unknown"),
        lr=options.lr if options.lr is not None else lr,
        seed=options.seed if options.seed is not None else seed if type(seed) is int else None,
        axes=_axes(history.config, cadence),
        assumptions=(*history.notes, *notes, *_row_notes(training, stretches, updates, cadence, replaced)),
    )


def _own(name: str) -> str:
    """TRL's own name of a metric: W&B and TensorBoard have train/reward and eval/reward."""
    if name.startswith("eval/"):
        return f"eval_{name.removeprefix('eval/')}"
    return name.removeprefix("train/")


@dataclass(frozen=True)
class Stretch:
    """Whole rows that follow one another and together are whole rollout batches: optimizer steps start + 1 .. end.

    rows: (optimizer steps that the row is the mean of, its metrics).
    """

    start: int
    end: int
    rows: tuple[tuple[int, Mapping[str, float]], ...]


def _stretches(training: Sequence[Row], steps_per_batch: int) -> list[Stretch]:
    """The stretches of a run; rows at a gap or at the end that make no whole rollout batch are left out."""
    distance = row_distance(training)
    found: list[Stretch] = []
    rows: list[tuple[int, Mapping[str, float]]] = []
    start = end = 0
    for step, metrics in training:
        begin = max(end, step - distance)
        if begin != end or not rows:
            start, rows = begin, []
        end = step
        if rows or start % steps_per_batch == 0:
            rows.append((step - begin, metrics))
        if rows and end % steps_per_batch == 0:
            found.append(Stretch(start, end, tuple(rows)))
            rows = []
    return found


def _evaluating_s(rows: Iterable[Mapping[str, float]]) -> list[float]:
    """Seconds of the evaluations, of one or several data sets."""
    return [x for metrics in rows for n, x in metrics.items() if n.startswith("eval_") and n.endswith("_runtime")]


def _update(stretch: Stretch, rows: Sequence[Row], cadence: Cadence) -> Update:
    """The update of a stretch, with the seconds of the evaluations within it.

    Where these are several rollout batches all that is known is their mean: it makes one update, as of the mean N of
    the policies that sampled them.
    """
    batches = (stretch.end - stretch.start) // cadence.steps
    before = cadence.samples_trained(stretch.start) + (batches - 1) * cadence.train_batch // 2
    names = sorted({name for _, metrics in stretch.rows for name in metrics})
    mean = {name: _mean([metrics[name] for _, metrics in stretch.rows if name in metrics]) for name in names}
    timed = all("step_time" in metrics for _, metrics in stretch.rows)
    seconds = sum(steps * metrics["step_time"] for steps, metrics in stretch.rows) if timed else 0.0
    evaluating_s = _evaluating_s(metrics for step, metrics in rows if stretch.start < step <= stretch.end)
    length = next((mean[name] for name in METRICS["response/length_mean"] if name in mean), None)
    return Update(
        step=stretch.start // cadence.steps + (batches + 1) // 2,
        samples_before=before,
        samples_trained=before + cadence.train_batch,
        scores={name: value for name, value in mean.items() if _is_score(name)},
        metrics={our: mean[name] for our, theirs in METRICS.items() for name in theirs[::-1] if name in mean},
        seconds={"undivided": seconds / batches} if seconds else {},
        apart_s={"evaluate": sum(evaluating_s) / batches} if evaluating_s else {},
        optimizer_steps=cadence.steps,
        tokens=None if length is None else round(length * cadence.train_batch),
        lr=next((metrics["learning_rate"] for _, metrics in stretch.rows[::-1] if "learning_rate" in metrics), None),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _is_score(name: str) -> bool:
    return name == TRAINING_SCORE or (name.startswith("rewards/") and not name.endswith("/std"))


def _is_evaluation(name: str) -> bool:
    """eval_reward, and eval_math_reward where there are several data sets."""
    return name.endswith("_reward") or ("_rewards/" in name and not name.endswith("/std"))


def _evaluations(rows: Sequence[Row], cadence: Cadence) -> list[Evaluation]:
    """Evaluation scores by the N of their policy; of one N the last counts."""
    found: dict[int, dict[str, float]] = {}
    for step, metrics in rows:
        scores = {name: value for name, value in metrics.items() if name.startswith("eval_") and _is_evaluation(name)}
        if scores:
            found[cadence.samples_trained(step)] = scores
    return [Evaluation(samples, found[samples]) for samples in sorted(found)]


def _curves(evals: Sequence[Evaluation], training: Sequence[Row]) -> tuple[str, ...]:
    validation = sorted({name for one in evals for name in one.scores}, key=lambda name: ("/" in name, name))
    scores = sorted(
        {name for _, metrics in training for name in metrics if _is_score(name)}, key=lambda n: ("/" in n, n)
    )
    return (*validation, *scores)


def _axes(config: Mapping[str, Any], cadence: Cadence) -> dict[str, Any]:
    found = {axis: value for axis, name in AXES.items() if isinstance(value := config.get(name), int | float | str)}
    return found | {"passes": cadence.passes, "mini_batch_size": cadence.mini_batch_size}


def _row_notes(
    training: Sequence[Row], stretches: Sequence[Stretch], updates: Sequence[Update], cadence: Cadence, replaced: int
) -> list[str]:
    notes = []
    if cadence.steps > 1 or cadence.passes > 1:
        notes.append(
            f"Optimizer steps per rollout batch: {cadence.steps}, passes over it: {cadence.passes}; its responses "
            "count once, in the first pass."
        )
    most = max((stretch.end - stretch.start) // cadence.steps for stretch in stretches)
    if most > 1:
        notes.append(f"Rows are means over {most} rollout batches: one record stands for them, at their mean N.")
    if replaced:
        notes.append(f"{replaced} rows were made again by a later attempt; the later ones count.")
    left = training[-1][0] - stretches[-1].end
    if left:
        notes.append(f"The last {left} optimizer steps end inside a rollout batch and are left out.")
    if cadence.steps > 1:
        notes.append(f"Gradient norms are those of optimizer steps of {cadence.mini_batch_size:,} responses.")
    if any(update.seconds for update in updates):
        notes.append("Seconds are step_time: without evaluation and checkpoints, but also without the optimizer step.")
    else:
        notes.append("No row has a step_time: q is unknown.")
    return notes
