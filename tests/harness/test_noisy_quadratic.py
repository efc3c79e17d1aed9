"""The rules on problems whose answer is known: Adam on a loss with a known noise scale, N* counted in samples.

The noise scale B_n is given in reference batches, whose size is 1. Where signal and noise alone act and the rate is
small, Adam moves a coordinate by lr * G / sqrt(G^2 + tr(S)/B) a step: r_N = sqrt((1 + B/B_n) / (1 + 1/B_n)) under the
square-root rule, and kappa * sqrt((1 + B_n/B) / (1 + B_n)) at a fixed rate, which is sqrt(kappa) far below B_n.
"""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch

from harness.algorithm.lr_rules import AdamSettings, LrRule, scale_adam

DIMENSIONS, LOOK_EVERY, MOST_STEPS = 1000, 8, 100_000


def samples_to_half(
    loss: Literal["quadratic", "linear"], rule: LrRule, kappa: int, noise_scale: float, lr: float
) -> float:
    """Samples until the loss, 1 at the start x = 1, is 1/2; interpolated between two looks.

    quadratic: mean of x^2, gradient x; the squared gradient halves on the way, so that B_n doubles. linear: mean of
    x, gradient 1. Both plus noise of variance noise_scale / kappa in each coordinate.
    """
    scaled = scale_adam(rule, AdamSettings(lr, (0.9, 0.999), 1e-8), kappa, 1)
    x_D = torch.ones(DIMENSIONS, requires_grad=True)
    optimizer = torch.optim.Adam([x_D], lr=scaled.lr, betas=scaled.betas, eps=scaled.eps, fused=True)
    random = torch.Generator().manual_seed(0)
    before = 1.0
    for steps in range(LOOK_EVERY, MOST_STEPS, LOOK_EVERY):
        noise_KD = torch.randn(LOOK_EVERY, DIMENSIONS, generator=random) * math.sqrt(noise_scale / kappa)
        for noise_D in noise_KD:
            x_D.grad = noise_D + (x_D.detach() if loss == "quadratic" else 1.0)
            optimizer.step()
        now = float((x_D.detach() ** (2 if loss == "quadratic" else 1)).mean())
        if now <= 0.5:
            return kappa * (steps - LOOK_EVERY * (0.5 - now) / (before - now))
        before = now
    raise AssertionError(f"{rule} at kappa {kappa} does not get there in {MOST_STEPS} steps")


@pytest.mark.slow
def test_the_square_root_rule_holds_far_below_the_noise_scale_and_a_fixed_rate_lags() -> None:
    # lr G / sqrt(tr S) = 8e-4 / sqrt(1000) = 2.5e-5 a step; ln(2)/2 over it: 13,700 reference batches
    reference = samples_to_half("quadratic", "sqrt", 1, 1000.0, 8e-4)
    assert reference == pytest.approx(13_700, rel=0.05)
    for kappa in (2, 8, 32):
        assert samples_to_half("quadratic", "sqrt", kappa, 1000.0, 8e-4) / reference == pytest.approx(1.0, abs=0.05)
    # the power form of the SDE rule, whose first average is as short in samples as the reference's
    assert samples_to_half("quadratic", "adam_sde_power", 32, 1000.0, 8e-4) / reference == pytest.approx(1.0, abs=0.05)
    # sqrt 2 = 1.414, within 5%
    assert samples_to_half("quadratic", "fixed", 2, 1000.0, 8e-4) / reference == pytest.approx(1.414, rel=0.05)


@pytest.mark.slow
def test_across_the_noise_scale_both_rules_follow_the_formula() -> None:
    # B_n = 16 batches: sqrt 1.03, 1.37, 2.17 at 2, 16, 64 (1.372 = sqrt(2/(17/16))); fixed 1.46 and 5.49 at 2 and 16
    noise_scale, lr = 16.0, 2e-4

    def ratio(rule: LrRule, kappa: int) -> float:
        return samples_to_half("linear", rule, kappa, noise_scale, lr) / reference

    reference = samples_to_half("linear", "sqrt", 1, noise_scale, lr)
    for kappa in (2, 16, 64):
        predicted = math.sqrt((1 + kappa / noise_scale) / (1 + 1 / noise_scale))
        assert ratio("sqrt", kappa) == pytest.approx(predicted, rel=0.01)
    for kappa in (2, 16):
        predicted = kappa * math.sqrt((1 + noise_scale / kappa) / (1 + noise_scale))
        assert ratio("fixed", kappa) == pytest.approx(predicted, rel=0.01)
