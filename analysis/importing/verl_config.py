"""What a run of verl was set to, from its configuration and its rows.

`data.train_batch_size` and `ppo_mini_batch_size` count prompts, `rollout.n` is the responses per prompt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from analysis.errors import InputError
from analysis.importing.run import History, Options, batch_of

ALGORITHMS = {"gae": "ppo"}
# axis -> where verl's configuration has it
AXES = {
    "model": "actor_rollout_ref.model.path",
    "passes": "actor_rollout_ref.actor.ppo_epochs",
    "clip_ratio": "actor_rollout_ref.actor.clip_ratio",
    "entropy_coeff": "actor_rollout_ref.actor.entropy_coeff",
    "kl_loss_coef": "actor_rollout_ref.actor.kl_loss_coef",
    "kl_reward_coef": "algorithm.kl_ctrl.kl_coef",
    "temperature": "actor_rollout_ref.rollout.temperature",
    "max_response_length": "data.max_response_length",
}
Metrics = Mapping[str, float]


def at(config: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path; None where there is none."""
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def batch(history: History, rows: Sequence[Metrics], options: Options) -> tuple[int, int, list[str]]:
    """(P, G, what was assumed), held against the responses that a row's own token counts give.

    Raises InputError where they are unknown, or where P*G is not what a row holds: a unit is wrong.
    """
    num_prompts = at(history.config, "data.train_batch_size")
    group_size = at(history.config, "actor_rollout_ref.rollout.n")
    notes = []
    if group_size is None and at(history.config, "actor_rollout_ref.rollout.prompt_length"):
        group_size = 1
        notes.append("The configuration has no rollout.n: one response per prompt.")
    responses = responses_per_row(rows)
    said_prompts, said_group = options.num_prompts or num_prompts, options.group_size or group_size
    if responses and said_prompts and not said_group and responses % said_prompts == 0:
        group_size = responses // said_prompts
        notes.append(f"Rows hold {responses:,} responses by their token counts: {group_size} per prompt.")
    elif responses and said_group and not said_prompts and responses % said_group == 0:
        num_prompts = responses // said_group
        notes.append(f"Rows hold {responses:,} responses by their token counts: {num_prompts:,} prompts.")
    hint = f"its rows hold {responses:,} responses by their token counts" if responses else ""
    found = batch_of(history.source, options, num_prompts, group_size, hint)
    train_batch = found[0] * found[1]
    if responses and abs(train_batch / responses - 1) > 0.02:
        raise InputError(
            f"{history.source}: {found[0]} prompts x {found[1]} responses are {train_batch:,} a row, but {hint}; "
            "--num-prompts counts prompts, --group-size responses per prompt"
        )
    return *found, notes


def responses_per_row(rows: Sequence[Metrics]) -> int | None:
    """Tokens of a batch over the mean tokens of a prompt with its response; None: not logged, or not one number.

    >>> responses_per_row([{"perf/total_num_tokens": 3328, "prompt_length/mean": 100.0, "response_length/mean": 4.0}])
    32
    """
    total, *lengths = "perf/total_num_tokens", "prompt_length/mean", "response_length/mean"
    found = [row[total] / sum(row[name] for name in lengths) for row in rows if all(map(row.get, (total, *lengths)))]
    if not found:
        return None
    middle = round(median(found))
    return middle if all(abs(x / middle - 1) < 0.02 for x in found) else None


def optimizer_steps(config: Mapping[str, Any], num_prompts: int) -> int | None:
    """Optimizer steps of a rollout batch; None: not known."""
    mini = at(config, "actor_rollout_ref.actor.ppo_mini_batch_size")
    return math.ceil(num_prompts / mini) * int(at(config, AXES["passes"]) or 1) if mini else None


def rate(metrics: Metrics, network: str) -> float | None:
    """The rate applied; a name such as actor/lr(1e-4) says its unit.

    >>> rate({"actor/lr(1e-4)": 0.25}, "actor"), rate({"actor/lr": 1e-06}, "actor"), rate({}, "actor")
    (2.5e-05, 1e-06, None)
    """
    for name, value in metrics.items():
        if found := re.fullmatch(rf"{network}/lr(?:\(([-+.\deE]+)\))?", name):
            return value * float(found[1] or 1)
    return None


def rates(config: Mapping[str, Any], rows: Sequence[Metrics], options: Options) -> tuple[float | None, float | None]:
    """(lr, critic's): configured, else the highest logged, for warm-up and decay lie below it."""
    found = []
    for network, path in (("actor", "actor_rollout_ref.actor.optim.lr"), ("critic", "critic.optim.lr")):
        logged = [value for metrics in rows if (value := rate(metrics, network)) is not None]
        configured = at(config, path)
        known = configured if isinstance(configured, int | float) else max(logged, default=None)
        found.append(known if network == "actor" or logged else None)
    return options.lr if options.lr is not None else found[0], found[1]


def algorithm(config: Mapping[str, Any], rows: Sequence[Metrics]) -> str:
    """Our name of the algorithm; verl's own where we have none."""
    name = at(config, "algorithm.adv_estimator")
    if isinstance(name, str):
        return ALGORITHMS.get(name, name)
    return "ppo" if any("critic/vf_loss" in metrics for metrics in rows) else "unknown"


def seed(config: Mapping[str, Any]) -> int | None:
    """The seed of the data order, the one that verl has."""
    found = at(config, "data.seed")
    return found if type(found) is int else None


def axes(config: Mapping[str, Any], group_size: int) -> dict[str, Any]:
    """What else may differ between runs, mini_batch_size in responses per optimizer step over all ranks."""
    found = {axis: value for axis, path in AXES.items() if isinstance(value := at(config, path), int | float | str)}
    mini = at(config, "actor_rollout_ref.actor.ppo_mini_batch_size")
    if mini:
        found["mini_batch_size"] = mini * group_size
    gpus = [at(config, f"trainer.{name}") for name in ("n_gpus_per_node", "nnodes")]
    if all(type(count) is int for count in gpus):
        found["gpus"] = gpus[0] * gpus[1]
    return found


def step_notes(config: Mapping[str, Any], num_prompts: int, group_size: int) -> list[str]:
    """What was assumed of the optimizer steps."""
    steps = optimizer_steps(config, num_prompts)
    if steps is None:
        return ["How many optimizer steps a rollout batch makes is not known: one is assumed."]
    notes = []
    if steps > 1:
        mini = at(config, "actor_rollout_ref.actor.ppo_mini_batch_size") * group_size
        notes.append(
            f"A rollout batch of {num_prompts * group_size:,} makes {steps} optimizer steps of {mini:,} responses; "
            "gradient norms are their mean, so they belong to a batch of that size."
        )
    warmup = at(config, "trainer.critic_warmup")
    if warmup:
        notes.append(f"The first {warmup} rows train the critic alone; their samples count.")
    return notes
