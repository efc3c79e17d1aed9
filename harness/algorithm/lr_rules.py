"""How the learning rate, and with it Adam's other numbers, follow the batch.

kappa = B/B_ref with B = num_prompts * group_size. Pure functions of numbers, without torch. Every rule leaves the
settings of the reference batch exactly as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from harness.errors import InputError

LrRule = Literal["fixed", "sqrt", "linear", "adam_sde", "adam_sde_power", "surge", "table"]
WeightDecayRule = Literal["fixed", "sqrt"]
ClipNormRule = Literal["fixed", "inverse_sqrt"]
WarmupRule = Literal["fixed", "linear"]


class AdamSettings(NamedTuple):
    """What a learning-rate rule changes."""

    lr: float
    betas: tuple[float, float]
    eps: float


def scale_adam(
    rule: LrRule,
    reference: AdamSettings,
    train_batch: int,
    reference_batch: int,
    noise_scale: float | None = None,
    lr_table: Mapping[int, float] | None = None,
    section: str = "optimizer",
) -> AdamSettings:
    """The settings at `train_batch` for which `reference` are those at `reference_batch`, both in responses.

    - fixed: unchanged.  sqrt: lr * sqrt(kappa).  linear: lr * kappa.
    - adam_sde (Malladi et al., 2205.10287): lr * sqrt(kappa), beta' = 1 - kappa (1 - beta) for both
      betas, eps / sqrt(kappa). Undefined where no average is left: kappa (1 - beta) >= 1.
    - adam_sde_power: the same with beta' = beta^kappa, which agrees to first order in 1 - beta and is always defined.
    - surge (Li et al., 2405.14578): lr(B) ~ 1 / (sqrt(B_n/B)/2 + sqrt(B/B_n)/2), which peaks at B_n = `noise_scale`,
      normalised to lr at the reference: lr * sqrt(kappa) * (B_n + B_ref) / (B_n + B).
    - table: `lr_table[train_batch]`, and only the rate.

    Raises InputError, which names fields of `section`, where a rule is undefined or lacks its parameter.

    >>> reference = AdamSettings(lr=3e-4, betas=(0.9, 0.999), eps=1e-8)
    >>> scale_adam("sqrt", reference, 256, 64)
    AdamSettings(lr=0.0006, betas=(0.9, 0.999), eps=1e-08)
    >>> scale_adam("linear", reference, 16, 64).lr
    7.5e-05
    >>> scale_adam("fixed", reference, 256, 64) == reference
    True
    >>> sde = scale_adam("adam_sde", reference, 256, 64)
    >>> [round(beta, 6) for beta in sde.betas], round(sde.lr, 9), round(sde.eps, 12)
    ([0.6, 0.996], 0.0006, 5e-09)
    >>> [round(beta, 6) for beta in scale_adam("adam_sde_power", reference, 256, 64).betas]
    [0.6561, 0.996006]
    >>> round(scale_adam("surge", reference, 256, 64, noise_scale=256).lr, 9)  # 2 (256 + 64) / (256 + 256) = 1.25
    0.000375
    >>> scale_adam("table", reference, 256, 64, lr_table={256: 5e-4}).lr
    0.0005
    """
    if rule == "table":
        return reference._replace(lr=_table_rate(reference.lr, train_batch, reference_batch, lr_table, section))
    kappa = train_batch / reference_batch
    if rule == "fixed":
        return reference
    if rule == "linear":
        return reference._replace(lr=reference.lr * kappa)
    lr = reference.lr * math.sqrt(kappa)
    if rule == "sqrt":
        return reference._replace(lr=lr)
    if rule == "surge":
        if noise_scale is None:
            raise InputError(
                f"{section}.noise_scale: unset; lr_rule surge needs the batch at which the rate peaks, for instance "
                f"1000, the noise scale of a report"
            )
        return reference._replace(lr=lr * (noise_scale + reference_batch) / (noise_scale + train_batch))
    power = rule == "adam_sde_power"
    first, second = (beta**kappa if power else _sde_beta(beta, kappa, section) for beta in reference.betas)
    return AdamSettings(lr, (first, second), reference.eps / math.sqrt(kappa))


def scale_weight_decay(rule: WeightDecayRule, weight_decay: float, kappa: float) -> float:
    """Weight decay at kappa times the reference batch; sqrt: weight_decay * sqrt(kappa).

    Decoupled decay takes the fraction lr * weight_decay off a weight per step, lr * weight_decay / B per sample. With
    lr ~ sqrt(kappa) the latter stays constant when weight_decay grows with sqrt(kappa) too, and with lr ~ kappa when
    weight_decay is fixed.

    >>> scale_weight_decay("sqrt", 0.01, 4.0), scale_weight_decay("fixed", 0.01, 4.0)
    (0.02, 0.01)
    """
    return weight_decay * math.sqrt(kappa) if rule == "sqrt" else weight_decay


def scale_clip_norm(rule: ClipNormRule, clip_norm: float | None, kappa: float) -> float | None:
    """Clip norm at kappa times the reference batch; inverse_sqrt: clip_norm / sqrt(kappa). None clips nothing.

    Below the noise scale a gradient norm falls as B^(-1/2) (McCandlish et al., 1812.06162), so that a fixed clip norm
    clips small batches more often; this one clips every batch alike.

    >>> scale_clip_norm("inverse_sqrt", 1.0, 4.0), scale_clip_norm("fixed", 1.0, 4.0)
    (0.5, 1.0)
    """
    return clip_norm / math.sqrt(kappa) if clip_norm is not None and rule == "inverse_sqrt" else clip_norm


def scale_warmup(rule: WarmupRule, warmup_samples: int, kappa: float) -> int:
    """Samples of warm-up at kappa times the reference batch, rounded.

    fixed: the same samples at every batch. linear: the same number of updates, hence warmup_samples * kappa; for a
    start that Adam's first updates would spoil, however many samples each holds.

    >>> scale_warmup("linear", 640, 4.0), scale_warmup("fixed", 640, 4.0)
    (2560, 640)
    """
    return round(warmup_samples * kappa) if rule == "linear" else warmup_samples


def _sde_beta(beta: float, kappa: float, section: str) -> float:
    """beta' = 1 - kappa (1 - beta); the reference itself stays exact."""
    if kappa == 1.0:
        return beta
    if kappa * (1.0 - beta) >= 1.0 - 1e-12:
        raise InputError(
            f"{section}.lr_rule: adam_sde at kappa = {kappa:g} needs kappa (1 - beta) below 1, but "
            f"{kappa:g} x (1 - {beta:g}) = {kappa * (1.0 - beta):g}; with beta {beta:g} it reaches to kappa below "
            f"{1.0 / (1.0 - beta):g}; adam_sde_power is defined everywhere"
        )
    return 1.0 - kappa * (1.0 - beta)


def _table_rate(
    lr: float, train_batch: int, reference_batch: int, lr_table: Mapping[int, float] | None, section: str
) -> float:
    if lr_table is None:
        raise InputError(
            f"{section}.lr_table: unset; lr_rule table needs a rate for every train batch, for instance "
            f"{{{train_batch}: {lr:g}}}"
        )
    if lr_table.get(reference_batch, lr) != lr:
        raise InputError(
            f"{section}.lr_table: {lr_table[reference_batch]:g} at the reference batch {reference_batch}, where "
            f"{section}.lr is {lr:g}; the two have to agree"
        )
    if train_batch not in lr_table:
        raise InputError(
            f"{section}.lr_table: no rate for the train batch {train_batch}; it has rates for "
            f"{', '.join(map(str, sorted(lr_table)))}"
        )
    return lr_table[train_batch]
