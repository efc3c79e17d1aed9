"""Dr. GRPO (Liu et al. 2503.20783): GRPO whose two biases are switched off in its configuration.

Without the division by the group's std easy and hard prompts weigh the same; with a constant denominator a long wrong
response is not punished less for each of its tokens.
"""

from __future__ import annotations

from harness.algorithm.grpo import Grpo


class DrGrpo(Grpo):
    """A = r - mean_G(r) (`group_relative`), token weights 1 / (S * constant_tokens) (`loss_weights`)."""
