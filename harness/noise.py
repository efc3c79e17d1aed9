"""The noise of a rollout batch's gradient: when it is measured, and what the measurement says."""

from __future__ import annotations

import numpy as np

from harness.algorithm.gradient_stats import SignalNoise, signal_and_noise, split_by_contrast
from harness.config import TrialConfig
from harness.seeds import hash64
from harness.types import BlockNorms, NoiseProbe, TrainBatch, UpdateStats

SPLIT_ONE_IN = 8
"""One measurement in so many also splits the noise between and within prompts, for one more backward pass."""


def passed(every_samples: int, before: int, after: int) -> bool:
    """Whether the update from `before` to `after` samples reached a multiple of `every_samples`.

    >>> passed(1024, 1016, 1024), passed(1024, 1024, 1032), passed(1024, 0, 4096)
    (True, False, True)
    """
    return after // every_samples > before // every_samples


def make_probe(config: TrialConfig, batch: TrainBatch, samples_before: int) -> NoiseProbe | None:
    """What the first optimizer step on `batch` measures; None when it is not its turn."""
    every = config.statistics.every_samples
    after = samples_before + batch.num_responses
    if not every or not passed(every, samples_before, after):
        return None
    group_size = config.batch.group_size
    if group_size % 2 or not passed(SPLIT_ONE_IN * every, samples_before, after):
        return NoiseProbe()
    return NoiseProbe(within_group_signs(config.seed, samples_before, batch.num_responses // group_size, group_size))


def within_group_signs(seed: int, samples_before: int, num_groups: int, group_size: int) -> np.ndarray:
    """-1 for half of the responses of each group, drawn for each group alone, 1 for the others; shape [P * G].

    >>> within_group_signs(0, 64, 3, 4).reshape(3, 4).sum(axis=1)
    array([0., 0., 0.])
    """
    draws_PG = hash64(seed, "noise signs", samples_before, np.arange(num_groups)[:, None], np.arange(group_size))
    ranks_PG = draws_PG.argsort(axis=1).argsort(axis=1)
    return np.where(ranks_PG < group_size // 2, -1.0, 1.0).reshape(-1)


def noise_metrics(stats: UpdateStats, config: TrialConfig, num_responses: int, role: str) -> dict[str, float]:
    """Unbiased |G|^2 and tr(S) of one optimizer step, and the split of tr(S) where it was measured.

    Average each over updates before dividing. Empty where there are no two equal blocks of whole groups.
    """
    blocks = stats.block_norms
    if blocks is None:
        return {}
    norm_sq = stats.metrics[f"grad/{role}_norm"] ** 2
    found = signal_and_noise(blocks.norms_sq_K, blocks.responses, norm_sq, num_responses)
    if found is None:
        return {}
    prefix = "grad/" if role == "actor" else f"grad/{role}_"
    metrics = {prefix + "signal_sq": found.signal_sq, prefix + "noise_trace": found.noise_trace}
    return metrics | {prefix + name: value for name, value in _split(found, blocks, config).items()}


def _split(found: SignalNoise, blocks: BlockNorms, config: TrialConfig) -> dict[str, float]:
    if blocks.signed_sq is None:
        return {}
    group_size = config.batch.group_size
    split = split_by_contrast(
        found, blocks.signed_sq, blocks.responses, group_size, config.algorithm.uses_group_baseline
    )
    return {"noise_between_trace": split.between_trace, "noise_within_trace": split.within_trace}
