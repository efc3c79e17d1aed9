"""The optimizer of a trial: what a sweep file says about the reference batch, taken to another batch by its rules."""

from __future__ import annotations

from typing import Any

from harness.algorithm.config import CriticConfig
from harness.algorithm.lr_rules import AdamSettings, scale_adam, scale_clip_norm, scale_warmup, scale_weight_decay
from harness.config import OptimizerConfig

SCALED = ("betas", "eps", "weight_decay", "clip_norm", "warmup_samples")


def resolve_critic(
    actor: OptimizerConfig, critic: CriticConfig | None, train_batch: int, reference_batch: int
) -> dict[str, Any] | None:
    """The same as resolve_optimizer for the critic's optimizer; None for an algorithm without a critic.

    What the critic leaves open is the actor's at the reference batch.
    """
    if critic is None:
        return None
    own = {name: value for name, value in critic if value is not None}
    return resolve_optimizer(actor.model_copy(update=own), train_batch, reference_batch, "algorithm.critic")


def resolve_optimizer(
    given: OptimizerConfig, train_batch: int, reference_batch: int, section: str = "optimizer"
) -> dict[str, Any]:
    """Fields of the TrialOptimizerConfig that the rules of `given`, whose numbers are those at `reference_batch`, make.

    Raises InputError naming a field of `section`.
    """
    kappa = train_batch / reference_batch
    adam = scale_adam(
        given.lr_rule,
        AdamSettings(given.lr, given.betas, given.eps),
        train_batch,
        reference_batch,
        given.noise_scale,
        given.lr_table,
        section,
    )
    applied = adam._asdict() | {
        "weight_decay": scale_weight_decay(given.weight_decay_rule, given.weight_decay, kappa),
        "clip_norm": scale_clip_norm(given.clip_norm_rule, given.clip_norm, kappa),
        "warmup_samples": scale_warmup(given.warmup_rule, given.warmup_samples, kappa),
    }
    before = {f"{name}_ref": getattr(given, name) for name in SCALED if applied[name] != getattr(given, name)}
    return given.model_dump() | applied | before | {"lr_ref": given.lr}
