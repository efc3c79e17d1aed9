"""How the learning rate, and with it Adam's other numbers, follow the batch.

kappa = B/B_ref with B = num_prompts * group_size. Pure functions of numbers, without torch.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from harness.errors import InputError

LrRule = Literal["fixed", "sqrt", "linear", "adam_sde"]


class AdamSettings(NamedTuple):
    """What a rule changes."""

    lr: float
    betas: tuple[float, float]
    eps: float


def scale_adam(rule: LrRule, reference: AdamSettings, kappa: float) -> AdamSettings:
    """The settings at kappa times the reference batch.

    - fixed: unchanged.  sqrt: lr * sqrt(kappa).  linear: lr * kappa.
    - adam_sde (Malladi et al., 2205.10287): lr * sqrt(kappa), beta' = 1 - kappa (1 - beta) for both
      betas, eps / sqrt(kappa).

    Raises InputError where adam_sde leaves no average: kappa (1 - beta) >= 1.

    >>> reference = AdamSettings(lr=3e-4, betas=(0.9, 0.999), eps=1e-8)
    >>> scale_adam("sqrt", reference, 4.0)
    AdamSettings(lr=0.0006, betas=(0.9, 0.999), eps=1e-08)
    >>> scale_adam("linear", reference, 0.25).lr
    7.5e-05
    >>> scale_adam("fixed", reference, 4.0) == reference
    True
    >>> sde = scale_adam("adam_sde", reference, 4.0)
    >>> [round(beta, 6) for beta in sde.betas], round(sde.lr, 9), round(sde.eps, 12)
    ([0.6, 0.996], 0.0006, 5e-09)
    """
    if rule == "fixed":
        return reference
    if rule == "linear":
        return reference._replace(lr=reference.lr * kappa)
    scaled = reference._replace(lr=reference.lr * math.sqrt(kappa))
    if rule == "sqrt":
        return scaled
    first, second = reference.betas
    return scaled._replace(
        betas=(_sde_beta(first, kappa), _sde_beta(second, kappa)), eps=reference.eps / math.sqrt(kappa)
    )


def _sde_beta(beta: float, kappa: float) -> float:
    """beta' = 1 - kappa (1 - beta); the reference itself stays exact."""
    if kappa == 1.0:
        return beta
    if kappa * (1.0 - beta) >= 1.0 - 1e-12:
        raise InputError(
            f"optimizer.lr_rule: adam_sde at kappa = {kappa:g} needs kappa (1 - beta) below 1, but "
            f"{kappa:g} x (1 - {beta:g}) = {kappa * (1.0 - beta):g}; with beta {beta:g} it reaches to kappa below "
            f"{1.0 / (1.0 - beta):g}"
        )
    return 1.0 - kappa * (1.0 - beta)
