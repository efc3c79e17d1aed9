"""Whether the engine samples from the weights that the trainer holds."""

from __future__ import annotations

import numpy as np

from harness.config import TrialConfig
from harness.errors import InputError
from harness.update import Update

# Mean over tokens, in nats. Rounding makes 5e-6 in float32 and .035 in bfloat16 (SmolLM2-135M at temperature .6, vLLM);
# weights that are one update old made .016 at a rate of 1e-4 and .05 at 3e-4 (tiny-llama), older ones more.
MOST_GAP = {"float32": 0.01, "bfloat16": 0.15}


def require_agreement(config: TrialConfig, update: Update, version: int) -> None:
    """InputError unless the tokens of the update were sampled with its own weights, version `version`, as it sees them.

    The first step of an update compares the log-probabilities that the engine gave its tokens with the trainer's own.
    Nothing is asked in the mode streaming, where tokens are older than the update that trains on them.
    """
    if config.execution.mode != "synchronous":
        return
    versions = {int(v) for group in update.trained.groups for r in group.rollouts for v in np.unique(r.versions_T)}
    if versions - {version}:
        raise RuntimeError(f"update {version + 1} trained on responses of weights {sorted(versions)}, not {version}")
    gap, most = update.stats.metrics["policy/logprob_gap_mean"], most_gap(config)
    if gap > most:
        raise InputError(
            f"execution.max_logprob_gap: {most:g}; in update {version + 1} the log-probabilities of engine and trainer "
            f"are {gap:.3g} apart in the mean over tokens (policy/logprob_gap_max: "
            f"{update.stats.metrics['policy/logprob_gap_max']:.3g}). The engine {config.execution.engine} samples from "
            f"other weights than the trainer {config.execution.trainer} holds, or the two compute this model "
            f"differently; needs a larger limit if {config.model.dtype} rounds that much here"
        )


def most_gap(config: TrialConfig) -> float:
    """execution.max_logprob_gap, or what rounding in model.dtype never reaches."""
    return config.execution.max_logprob_gap or MOST_GAP[config.model.dtype]
