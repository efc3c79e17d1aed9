"""Learning-rate rules against numbers worked by hand."""

from __future__ import annotations

from typing import get_args

import pytest

from harness.algorithm.lr_rules import (
    AdamSettings,
    LrRule,
    scale_adam,
    scale_clip_norm,
    scale_warmup,
    scale_weight_decay,
)
from harness.errors import InputError

REFERENCE = AdamSettings(lr=1e-3, betas=(0.9, 0.999), eps=1e-8)


@pytest.mark.parametrize(
    ("rule", "train_batch", "lr"),
    [
        ("fixed", 1024, 1e-3),
        ("sqrt", 1024, 4e-3),
        ("sqrt", 16, 5e-4),
        ("linear", 1024, 16e-3),
        ("adam_sde", 256, 2e-3),
        ("adam_sde_power", 1024, 4e-3),
        # B_n 960: sqrt(16) x (960 + 64) / (960 + 1024) = 4 x 1024 / 1984
        ("surge", 1024, 4e-3 * 1024 / 1984),
        ("surge", 16, 0.5e-3 * 1024 / 976),
        ("table", 1024, 2.5e-3),
    ],
)
def test_rate(rule: LrRule, train_batch: int, lr: float) -> None:
    table = {64: 1e-3, 1024: 2.5e-3}
    scaled = scale_adam(rule, REFERENCE, train_batch, 64, noise_scale=960, lr_table=table)
    assert scaled.lr == pytest.approx(lr, rel=1e-12)


def test_surge_peaks_at_the_noise_scale_and_falls_beyond() -> None:
    def rate(train_batch: int) -> float:
        return scale_adam("surge", REFERENCE, train_batch, 64, noise_scale=1024).lr

    # equal at equal distance on either side: B and B_n^2 / B; 8 x (1024 + 64) / (1024 + 4096) = 1.7
    assert rate(4096) == pytest.approx(1.7e-3)
    assert rate(256) == pytest.approx(rate(4096))
    assert max(range(64, 8192, 64), key=rate) == 1024


@pytest.mark.parametrize("rule", ["fixed", "sqrt", "linear", "surge", "table"])
def test_only_the_sde_rules_touch_betas_and_eps(rule: LrRule) -> None:
    scaled = scale_adam(rule, REFERENCE, 512, 64, noise_scale=1000, lr_table={512: 2e-3})
    assert (scaled.betas, scaled.eps) == (REFERENCE.betas, REFERENCE.eps)


def test_sde_moves_betas_and_eps() -> None:
    # kappa 4: 1 - 4 x .1 = .6, 1 - 4 x .001 = .996, 1e-8 / 2
    scaled = scale_adam("adam_sde", REFERENCE, 256, 64)
    assert scaled.betas == pytest.approx((0.6, 0.996))
    assert scaled.eps == pytest.approx(5e-9)
    # and below the reference, kappa 1/4: 1 - .1/4 = .975
    assert scale_adam("adam_sde", REFERENCE, 16, 64).betas == pytest.approx((0.975, 0.99975))


def test_the_power_form_of_the_sde_rule_is_defined_everywhere() -> None:
    # .9^2 = .81 and .999^2 = .998001; at kappa 256 .9^256 = 1.93e-12: Adam without its first average
    scaled = scale_adam("adam_sde_power", REFERENCE, 128, 64)
    assert scaled.betas == pytest.approx((0.81, 0.998001), rel=1e-12)
    assert scale_adam("adam_sde_power", REFERENCE, 16384, 64).betas == pytest.approx((1.9323e-12, 0.774031), rel=1e-4)
    assert scale_adam("adam_sde_power", REFERENCE, 256, 64).eps == pytest.approx(5e-9)


@pytest.mark.parametrize("rule", get_args(LrRule))
def test_every_rule_leaves_the_reference_exactly_as_it_is(rule: LrRule) -> None:
    assert scale_adam(rule, REFERENCE, 64, 64, noise_scale=1000, lr_table={64: 1e-3}) == REFERENCE


@pytest.mark.parametrize("kappa", [10, 16])
def test_sde_needs_an_average_to_be_left(kappa: int) -> None:
    with pytest.raises(InputError) as caught:
        scale_adam("adam_sde", REFERENCE, kappa * 64, 64)
    assert str(caught.value) == (
        f"optimizer.lr_rule: adam_sde at kappa = {kappa} needs kappa (1 - beta) below 1, but "
        f"{kappa} x (1 - 0.9) = {kappa / 10:g}; with beta 0.9 it reaches to kappa below 10; "
        f"adam_sde_power is defined everywhere"
    )


def test_sde_just_below_its_limit() -> None:
    assert scale_adam("adam_sde", REFERENCE, 608, 64).betas[0] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("rule", "table", "message"),
    [
        ("surge", None, "critic.noise_scale: unset; lr_rule surge needs the batch at which the rate peaks, for instance 1000, the noise scale of a report"),
        ("table", None, "critic.lr_table: unset; lr_rule table needs a rate for every train batch, for instance {256: 0.001}"),
        ("table", {64: 1e-3, 128: 2e-3}, "critic.lr_table: no rate for the train batch 256; it has rates for 64, 128"),
        ("table", {64: 2e-3, 256: 4e-3}, "critic.lr_table: 0.002 at the reference batch 64, where critic.lr is 0.001; the two have to agree"),
    ],
)  # fmt: skip
def test_a_rule_without_its_parameter(rule: LrRule, table: dict[int, float] | None, message: str) -> None:
    with pytest.raises(InputError) as caught:
        scale_adam(rule, REFERENCE, 256, 64, lr_table=table, section="critic")
    assert str(caught.value) == message


def test_what_else_follows_the_batch() -> None:
    # kappa 16 and 1/4
    assert (scale_weight_decay("sqrt", 0.1, 16.0), scale_weight_decay("sqrt", 0.1, 0.25)) == (0.4, 0.05)
    assert (scale_clip_norm("inverse_sqrt", 1.0, 16.0), scale_clip_norm("inverse_sqrt", 1.0, 0.25)) == (0.25, 2.0)
    assert scale_clip_norm("inverse_sqrt", None, 16.0) is None
    # 100 x .3 = 30 samples, rounded from 30.000000000000004 or so
    assert (scale_warmup("linear", 100, 16.0), scale_warmup("linear", 100, 0.3)) == (1600, 30)


def test_the_decay_per_sample_stays_constant() -> None:
    # lr 1e-3 and decay .1 at B = 64: 1e-4 / 64 a sample; sqrt with sqrt, linear with fixed
    for lr_rule, decay_rule in (("sqrt", "sqrt"), ("linear", "fixed")):
        lr = scale_adam(lr_rule, REFERENCE, 576, 64).lr  # type: ignore[arg-type]
        assert lr * scale_weight_decay(decay_rule, 0.1, 9.0) / 576 == pytest.approx(1e-4 / 64)  # type: ignore[arg-type]
