"""Learning-rate rules against numbers worked by hand."""

from __future__ import annotations

import pytest

from harness.algorithm.lr_rules import AdamSettings, LrRule, scale_adam
from harness.errors import InputError

REFERENCE = AdamSettings(lr=1e-3, betas=(0.9, 0.999), eps=1e-8)


@pytest.mark.parametrize(
    ("rule", "kappa", "lr"),
    [
        ("fixed", 16.0, 1e-3),
        ("sqrt", 16.0, 4e-3),
        ("sqrt", 0.25, 5e-4),
        ("linear", 16.0, 16e-3),
        ("adam_sde", 4.0, 2e-3),
    ],
)
def test_rate(rule: LrRule, kappa: float, lr: float) -> None:
    assert scale_adam(rule, REFERENCE, kappa).lr == pytest.approx(lr, rel=1e-12)


@pytest.mark.parametrize("rule", ["fixed", "sqrt", "linear"])
def test_only_the_sde_rule_touches_betas_and_eps(rule: LrRule) -> None:
    scaled = scale_adam(rule, REFERENCE, 8.0)
    assert (scaled.betas, scaled.eps) == (REFERENCE.betas, REFERENCE.eps)


def test_sde_moves_betas_and_eps() -> None:
    # kappa 4: 1 - 4 x .1 = .6, 1 - 4 x .001 = .996, 1e-8 / 2
    scaled = scale_adam("adam_sde", REFERENCE, 4.0)
    assert scaled.betas == pytest.approx((0.6, 0.996))
    assert scaled.eps == pytest.approx(5e-9)
    # and below the reference, kappa 1/4: 1 - .1/4 = .975
    assert scale_adam("adam_sde", REFERENCE, 0.25).betas == pytest.approx((0.975, 0.99975))


def test_every_rule_leaves_the_reference_exactly_as_it_is() -> None:
    for rule in ("fixed", "sqrt", "linear", "adam_sde"):
        assert scale_adam(rule, REFERENCE, 1.0) == REFERENCE


@pytest.mark.parametrize("kappa", [10.0, 16.0])
def test_sde_needs_an_average_to_be_left(kappa: float) -> None:
    with pytest.raises(InputError) as caught:
        scale_adam("adam_sde", REFERENCE, kappa)
    product = f"{kappa / 10:g}"
    assert str(caught.value) == (
        f"optimizer.lr_rule: adam_sde at kappa = {kappa:g} needs kappa (1 - beta) below 1, but "
        f"{kappa:g} x (1 - 0.9) = {product}; with beta 0.9 it reaches to kappa below 10"
    )


def test_sde_just_below_its_limit() -> None:
    assert scale_adam("adam_sde", REFERENCE, 9.5).betas[0] == pytest.approx(0.05)
