"""Adam's state at the start of a branch: as the parent left it, brought to another batch, or none. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.advise.config import Moments
from harness.config import OptimizerConfig


def moved(
    state: Mapping[str, Any],
    to: OptimizerConfig,
    moments: Moments,
    factor: float,
    batch: int,
    noise_scale: float | None,
) -> dict[str, Any]:
    """An Adam state_dict after steps of `batch` responses, for a trial whose steps are `factor` times as large.

    The settings are those of `to`. Of the moments m, v after t steps,

        restored   all as they are (Merrill et al. 2505.23971)
        fresh      none: Adam starts anew
        rescaled   v_hat' = v_hat (1 + B_n / (k B)) / (1 + B_n / B),   m_hat' = m_hat,   t' = max(1, round(t / k))

    with k = factor, B = batch, B_n = noise_scale, and m_hat, v_hat the moments after Adam's correction for its start
    (v_hat = v / (1 - beta_2^t), with the parent's betas; back with those of `to`). A mean gradient over B responses has
    the mean square |G|^2 (1 + B_n / B), so that v of a small batch holds k times the noise that the branch will meet;
    with beta_2 = .999 that would outlast a branch of tens of steps, which would then take steps too short by up to
    sqrt(k). t' keeps the age of the moments in samples.

    >>> group = {"params": [0], "lr": 0.1, "betas": (0.5, 0.5), "eps": 1e-8, "weight_decay": 0.0, "fused": True}
    >>> adam = {"step": torch.tensor(8.0), "exp_avg": torch.tensor([255.0]), "exp_avg_sq": torch.tensor([255.0])}
    >>> parent, to = {"state": {0: adam}, "param_groups": [group]}, OptimizerConfig(lr=0.2, betas=(0.5, 0.75))
    >>> found = moved(parent, to, "rescaled", factor=4, batch=64, noise_scale=192.0)
    >>> # m_hat = v_hat = 255 / (1 - 2^-8) = 256; v_hat' = 256 (1 + 192/256) / (1 + 192/64) = 112; t' = 8 / 4 = 2;
    >>> # back with beta_1 = 1/2, beta_2 = 3/4: m' = 256 (1 - 1/4) = 192, v' = 112 (1 - 9/16) = 49
    >>> {name: value.item() for name, value in found["state"][0].items()}
    {'step': 2.0, 'exp_avg': 192.0, 'exp_avg_sq': 49.0}
    >>> found["param_groups"][0]["betas"], found["param_groups"][0]["lr"], found["param_groups"][0]["fused"]
    ((0.5, 0.75), 0.2, True)
    >>> moved(parent, to, "restored", 4, 64, None)["state"][0] == adam, moved(parent, to, "fresh", 4, 64, None)["state"]
    (True, {})
    """
    own = {"lr": to.lr, "betas": to.betas, "eps": to.eps, "weight_decay": to.weight_decay}
    groups = [{**group, **own} for group in state["param_groups"]]
    if moments == "restored":
        adam = dict(state["state"])
    elif moments == "fresh":
        adam = {}
    else:
        assert noise_scale is not None  # the configuration is refused without it
        shrink = (1 + noise_scale / (factor * batch)) / (1 + noise_scale / batch)
        before = [group["betas"] for group in state["param_groups"] for _ in group["params"]]
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        betas = dict(zip(numbers, before, strict=True))
        adam = {n: _rescaled(one, betas[n], to.betas, factor, shrink) for n, one in state["state"].items()}
    return {**state, "state": adam, "param_groups": groups}


def _rescaled(
    adam: Mapping[str, torch.Tensor], old: tuple[float, float], new: tuple[float, float], factor: float, shrink: float
) -> dict[str, torch.Tensor]:
    """One parameter's step, m and v; see moved."""
    before = adam["step"].item()
    after = max(1.0, float(round(before / factor)))
    first, second = ((1 - b_new**after) / (1 - b_old**before) for b_old, b_new in zip(old, new, strict=True))
    return {
        **adam,
        "step": torch.full_like(adam["step"], after),
        "exp_avg": adam["exp_avg"] * first,
        "exp_avg_sq": adam["exp_avg_sq"] * (second * shrink),
    }
