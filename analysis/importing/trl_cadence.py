"""How a run of TRL uses its rollout batches: responses of one, optimizer steps over it, passes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.errors import InputError
from analysis.importing.merge import Row
from analysis.importing.run import History, Options, Update, batch_of

SAMPLED = ("reward", "num_tokens")
"""A row without either says that nothing was sampled in it."""


@dataclass(frozen=True)
class Cadence:
    """How optimizer steps use rollout batches: `steps` of them go `passes` times over each batch of P * G responses."""

    num_prompts: int
    group_size: int
    steps: int
    passes: int

    @property
    def train_batch(self) -> int:
        """B = P * G, responses."""
        return self.num_prompts * self.group_size

    @property
    def mini_batch_size(self) -> int:
        """Responses of an optimizer step, B * passes / steps; where it takes all of them several times, B."""
        return min(self.train_batch * self.passes // self.steps, self.train_batch)

    def samples_trained(self, step: int) -> int:
        """N after `step` optimizer steps: the first pass over a rollout batch counts its responses, the others do not.

        >>> two_passes = Cadence(num_prompts=8, group_size=4, steps=4, passes=2)
        >>> [two_passes.samples_trained(step) for step in range(7)]
        [0, 16, 32, 32, 32, 48, 64]
        """
        whole, rest = divmod(step, self.steps)
        return whole * self.train_batch + min(self.train_batch, rest * self.passes * self.train_batch // self.steps)


def cadence_of(history: History, training: Sequence[Row], options: Options) -> tuple[Cadence, list[str]]:
    """The units of the run, from its configuration, else from its rows and the options."""
    configured = _configured(history)
    if configured:
        batch_of(history.source, options, configured.num_prompts, configured.group_size)
        one = configured.steps == configured.passes == 1
        return configured, ["One optimizer step per rollout batch, by the trainer's arguments."] if one else []
    steps, notes = _steps_per_batch(history.source, training)
    per_step = _responses_per_step(training)
    group_size = options.group_size or _count(history.config, "num_generations")
    num_prompts: int | None = None
    if per_step and steps == 1 and group_size and not options.num_prompts and per_step % group_size == 0:
        num_prompts = per_step // group_size
        notes.append(
            f"An optimizer step takes {per_step:,} responses by the trainer's own speeds: {num_prompts:,} prompts."
        )
    hint = f"an optimizer step takes {per_step:,} responses" if per_step else ""
    batch = batch_of(history.source, options, num_prompts, group_size, hint)
    train_batch = batch[0] * batch[1]
    passes, rest = divmod((per_step or 0) * steps, train_batch)
    if per_step and (rest or not passes):
        raise InputError(
            f"{history.source}: {batch[0]} prompts x {batch[1]} responses are {train_batch:,}, but "
            f"{steps} optimizer steps of {per_step:,} responses go over a rollout batch; --num-prompts counts prompts, "
            "--group-size responses per prompt"
        )
    if not per_step and steps > 1:
        notes.append(f"The {steps} optimizer steps of a rollout batch are taken to go over it once.")
    return Cadence(*batch, steps, passes or 1), notes


def _configured(history: History) -> Cadence | None:
    """The units that the trainer's arguments give; None: they are not all there.

    Slices that one optimizer step accumulates over several samplings belong to one policy: together they are the
    rollout batch.
    """
    config = history.config
    names = ("num_generations", "generation_batch_size", "steps_per_generation", "gradient_accumulation_steps")
    group_size, responses, slices, accumulated = (_count(config, name) for name in names)
    if not (group_size and responses and slices and accumulated):
        return None
    passes = _count(config, "num_iterations") or 1
    if slices * passes % accumulated and accumulated % (slices * passes):
        raise InputError(
            f"{history.source}: steps_per_generation {slices} x num_iterations {passes} is no whole multiple of "
            f"gradient_accumulation_steps {accumulated} nor a divisor: rollout batches begin inside optimizer steps"
        )
    together = max(accumulated // (slices * passes), 1)
    steps = max(slices * passes // accumulated, 1)
    return Cadence(responses * together // group_size, group_size, steps, passes)


def _count(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if type(value) is int and value > 0 else None


def _steps_per_batch(source: Path, training: Sequence[Row]) -> tuple[int, list[str]]:
    """(optimizer steps per rollout batch, what was assumed), from the rows in which something was sampled."""
    sampled = [step for step, metrics in training if any(name in metrics for name in SAMPLED)]
    apart = {later - step for step, later in itertools.pairwise(sampled)}
    if len(sampled) == len(training):
        if row_distance(training) == 1:
            return 1, ["One optimizer step per rollout batch: each samples anew."]
        return 1, ["One optimizer step per rollout batch, TRL's default: rows of several steps do not show it."]
    if len(apart) != 1:
        raise InputError(
            f"{source} does not show how many optimizer steps a rollout batch makes (it samples in rows "
            f"{', '.join(map(str, sampled[:6]))}): put the training_args.bin of its checkpoint beside it"
        )
    steps = apart.pop()
    return steps, [f"A rollout batch makes {steps} optimizer steps: so often something new was sampled."]


def _responses_per_step(training: Sequence[Row]) -> int | None:
    """Responses of an optimizer step by the trainer's closing speeds; None: not logged, or rounded too far."""
    for _, metrics in training:
        samples, steps = metrics.get("train_samples_per_second"), metrics.get("train_steps_per_second")
        if samples and steps:
            responses = samples / steps
            if responses * (5e-4 / steps + 5e-4 / samples + 1e-3) < 0.5:
                return round(responses)
    return None


def row_distance(training: Sequence[Row]) -> int:
    """Optimizer steps from one row to the next, as most are apart."""
    apart = [later - step for (step, _), (later, _) in itertools.pairwise(training)]
    return Counter(apart).most_common(1)[0][0] if apart else training[0][0]


def check_tokens(source: Path, training: Sequence[Row], updates: Sequence[Update], cadence: Cadence) -> None:
    """More response tokens than the log counts tokens in all: the batch is given in the wrong unit."""
    counted = [metrics["num_tokens"] for _, metrics in training if "num_tokens" in metrics]
    lengths = [update.tokens / cadence.train_batch for update in updates if update.tokens is not None]
    whole = training[0][0] <= row_distance(training) and counted == sorted(counted)
    if not (counted and lengths and whole):
        return
    claimed = sum(lengths) / len(lengths) * cadence.samples_trained(training[-1][0])
    if claimed > 1.01 * counted[-1]:
        raise InputError(
            f"{source}: {cadence.num_prompts} prompts x {cadence.group_size} responses a rollout batch would be "
            f"{claimed:,.0f} response tokens, but the log counts {counted[-1]:,.0f} tokens, prompts included; "
            "--num-prompts counts prompts, not responses"
        )
