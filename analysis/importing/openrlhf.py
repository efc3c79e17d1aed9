"""Runs of OpenRLHF, from the rows of its TensorBoard or W&B logger.

Units, from OpenRLHF's trainer: `rollout_batch_size` (newer: `rollout.batch_size`) counts prompts,
`n_samples_per_prompt` is G, `train_batch_size` (`train.batch_size`) counts responses of an optimizer step, `max_epochs`
the passes over a rollout batch. `global_step` counts rollout batches, from 1; with `logging_steps` above 1 a row is one
of them still. Training scores are of the policy before the update, evaluation scores (`eval/eval_<data>_pass1`) of the
one after it. `timing/step_total` is the sum of the phases, without evaluation and checkpoints; where generation runs
beside training it is the time from one update to the next, with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analysis.errors import InputError
from analysis.importing.merge import Row, merged
from analysis.importing.run import Evaluation, History, ImportedRun, Options, Update, batch_of

PHASES = {
    "timing/generation": "generate",
    "timing/make_experience": "reward",
    "timing/ppo_train": "train",
    "timing/broadcast": "sync",
}
TRAINING_SCORES = ("rollout/reward_mean", "reward")
# Our name -> OpenRLHF's, the mean over the whole rollout batch first.
METRICS = {
    "reward/mean": ("rollout/reward_mean", "reward"),
    "response/length_mean": ("rollout/response_length_mean", "response_length"),
    "response/truncated_frac": ("rollout/truncated_rate",),
    "policy/clip_frac": ("ppo_clip_ratio",),
    "policy/ref_kl": ("kl",),
    "loss/actor": ("policy_loss",),
    "loss/critic": ("critic_loss",),
}
# axis -> OpenRLHF's names, as of old and of new
AXES = {
    "model": ("pretrain", "actor.model_name_or_path"),
    "clip_ratio": ("eps_clip",),
    "kl_coef": ("init_kl_coef", "algo.kl.init_coef"),
    "temperature": ("temperature", "rollout.temperature"),
    "max_response_length": ("generate_max_len", "rollout.max_new_tokens"),
}
COUNT = "rollout/num_samples"


def speaks(names: Iterable[str]) -> bool:
    """Whether metric names, of whatever logger, are OpenRLHF's."""
    own = {name.removeprefix("train/") for name in names}
    return "policy_loss" in own and bool(own & {"actor_lr", "return", "rollout/reward_mean", "timing/ppo_train"})


def run_of(history: History, options: Options) -> ImportedRun:
    """The run that rows under OpenRLHF's names are; InputError where none of them trains or the batch is unknown."""
    rows, replaced = merged((step, {_own(n): x for n, x in metrics.items()}) for step, metrics in history.rows)
    training = [(step, metrics) for step, metrics in rows if any(name in metrics for name in TRAINING_SCORES)]
    if not training:
        raise InputError(f"{history.source} has no rows of OpenRLHF with a reward; {len(rows)} rows without one")
    num_prompts, group_size, notes = _batch(history, training, options)
    train_batch = num_prompts * group_size
    mini = _at(history.config, "train_batch_size", "train.batch_size")
    passes = _at(history.config, "max_epochs", "train.max_epochs") or 1
    steps = max(train_batch * passes // mini, 1) if type(mini) is int else 1
    if type(mini) is not int:
        notes.append("How many optimizer steps a rollout batch makes is not known: one is assumed.")
    updates = [_update(step, metrics, train_batch, steps) for step, metrics in training]
    evals = _evaluations(rows, train_batch)
    lr = _at(history.config, "actor_learning_rate", "actor.adam.lr")
    logged = {
        name: max((m[name] for _, m in training if name in m), default=None) for name in ("actor_lr", "critic_lr")
    }
    seed = history.config.get("seed")
    return ImportedRun(
        name=history.name,
        source=history.source,
        system="openrlhf",
        num_prompts=num_prompts,
        group_size=group_size,
        updates=tuple(updates),
        evals=tuple(evals),
        curves=_curves(evals, training),
        algorithm=_algorithm(history.config, training),
        lr=options.lr if options.lr is not None else lr if isinstance(lr, float) else logged["actor_lr"],
        critic_lr=logged["critic_lr"],
        seed=options.seed if options.seed is not None else seed if type(seed) is int else None,
        axes=_axes(history.config, mini, passes),
        assumptions=(*history.notes, *notes, *_notes(training, updates, train_batch, replaced)),
    )


def _own(name: str) -> str:
    """The name without the logger's train/; those of evaluations keep their eval/."""
    return name.removeprefix("train/")


def _at(config: Mapping[str, Any], *names: str) -> Any:
    """The first of the settings that there is; a name with dots is looked for flat and nested."""
    for name in names:
        value: Any = config.get(name)
        if value is None:
            value = config
            for key in name.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def _batch(history: History, training: Sequence[Row], options: Options) -> tuple[int, int, list[str]]:
    """(P, G, what was assumed), held against the responses that the rows themselves count."""
    num_prompts = _at(history.config, "rollout_batch_size", "rollout.batch_size")
    group_size = _at(history.config, "n_samples_per_prompt", "rollout.n_samples_per_prompt")
    counts = {round(metrics[COUNT]) for _, metrics in training if COUNT in metrics}
    counted = counts.pop() if len(counts) == 1 else None
    notes = []
    said_prompts, said_group = options.num_prompts or num_prompts, options.group_size or group_size
    if counted and said_group and not said_prompts and counted % said_group == 0:
        num_prompts = counted // said_group
        notes.append(f"Rows count {counted:,} responses each: {num_prompts:,} prompts.")
    elif counted and said_prompts and not said_group and counted % said_prompts == 0:
        group_size = counted // said_prompts
        notes.append(f"Rows count {counted:,} responses each: {group_size} per prompt.")
    hint = f"its rows count {counted:,} responses each" if counted else ""
    found = batch_of(history.source, options, num_prompts, group_size, hint)
    if counted and counted != found[0] * found[1]:
        raise InputError(
            f"{history.source}: {found[0]} prompts x {found[1]} responses are {found[0] * found[1]:,}, but {hint}; "
            "--num-prompts counts prompts, --group-size responses per prompt"
        )
    return *found, notes


def _update(step: int, metrics: Mapping[str, float], train_batch: int, optimizer_steps: int) -> Update:
    length = next((metrics[name] for name in METRICS["response/length_mean"] if name in metrics), None)
    return Update(
        step=step,
        samples_before=(step - 1) * train_batch,
        samples_trained=step * train_batch,
        scores={name: metrics[name] for name in TRAINING_SCORES if name in metrics},
        metrics={our: metrics[name] for our, theirs in METRICS.items() for name in theirs[::-1] if name in metrics},
        seconds=_seconds(metrics),
        optimizer_steps=optimizer_steps,
        tokens=None if length is None else round(length * train_batch),
        lr=metrics.get("actor_lr"),
        critic_lr=metrics.get("critic_lr"),
    )


def _seconds(metrics: Mapping[str, float]) -> dict[str, float]:
    """Seconds that count into q: by phase where these are the step, else undivided; {}: no full account of them."""
    phases = {our: metrics[name] for name, our in PHASES.items() if name in metrics}
    total = metrics.get("timing/step_total")
    if total is None:
        return phases if {"generate", "train"} <= phases.keys() else {}
    return phases if abs(sum(phases.values()) - total) <= 0.01 * total else {"undivided": total}


def _evaluations(rows: Sequence[Row], train_batch: int) -> list[Evaluation]:
    found = []
    for step, metrics in rows:
        scores = {name: value for name, value in metrics.items() if name.startswith("eval/") and "_pass" in name}
        if scores:
            found.append(Evaluation(step * train_batch, scores))
    return found


def _curves(evals: Sequence[Evaluation], training: Sequence[Row]) -> tuple[str, ...]:
    validation = sorted({name for one in evals for name in one.scores}, key=lambda n: (not n.endswith("_pass1"), n))
    return (*validation, *(name for name in TRAINING_SCORES if any(name in metrics for _, metrics in training)))


def _algorithm(config: Mapping[str, Any], training: Sequence[Row]) -> str:
    """The name of the advantage estimator; without one, a critic's loss says PPO."""
    name = _at(config, "advantage_estimator", "algo.advantage.estimator")
    if isinstance(name, str):
        return {"gae": "ppo", "group_norm": "grpo"}.get(name, name)
    return "ppo" if any("critic_loss" in metrics for _, metrics in training) else "unknown"


def _axes(config: Mapping[str, Any], mini: Any, passes: int) -> dict[str, Any]:
    found = {axis: value for axis, names in AXES.items() if isinstance(value := _at(config, *names), int | float | str)}
    found["passes"] = passes
    if type(mini) is int:
        found["mini_batch_size"] = mini
    return found


def _notes(training: Sequence[Row], updates: Sequence[Update], train_batch: int, replaced: int) -> list[str]:
    notes = ["A row is one rollout batch; a row's training score is of the policy before it."]
    if replaced:
        notes.append(f"{replaced} rows were made again by a later attempt; the later ones count.")
    missing = updates[-1].step - len(updates)
    if missing:
        notes.append(f"{missing} rows are missing: their samples are counted, their scores and seconds are unknown.")
    if any("dynamic_filtering_pass_rate" in metrics for _, metrics in training):
        notes.append("Groups were filtered: what was generated and dropped is not counted.")
    if not any(update.seconds for update in updates):
        notes.append("No row has the seconds of its phases: q is unknown.")
    elif any("undivided" in update.seconds for update in updates):
        notes.append("Phases overlap: seconds are from one update to the next, evaluation and checkpoints included.")
    return notes
