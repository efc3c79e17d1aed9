"""What to call an arm: by what tells it from the others of its learning-rate rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.series import OF_LEARNING, series_names

Report = Mapping[str, Any]


def short_label(report: Report, arm: Mapping[str, Any]) -> str:
    """`B = 64`; where arms share the batch, `lr 4e-4`, `G = 16` or another axis that varies; else the arm's name.

    Where several batches are shared, with the series: `B = 64 (streaming, 2x in flight)`.
    """
    own = [other for other in report["arms"] if other["lr_rule"] == arm["lr_rule"]]
    if _alone(own, arm, "train_batch"):
        return f"B = {arm['train_batch']:,}"
    if len({other["train_batch"] for other in report["arms"]}) > 1:
        series = series_names(report["arms"], "train_batch", without=OF_LEARNING)
        labels = [
            (other["train_batch"], name) for other, name in zip(report["arms"], series, strict=True) if other in own
        ]
        mine = arm["train_batch"], series[report["arms"].index(arm)]
        return f"B = {mine[0]:,} ({mine[1]})" if mine[1] and labels.count(mine) == 1 else str(arm["arm"])
    for name, prefix in (("lr", "lr "), ("group_size", "G = ")):
        if _alone(own, arm, name):
            return prefix + short_number(arm[name])
    for name in arm["axes"]:
        if name not in ("in_flight", "lr_ref") and _alone(own, arm, name):
            value, title = arm["axes"][name], name.rpartition(".")[2].replace("_", " ")
            return f"{title} {short_number(value) if isinstance(value, int | float) else value}"
    return str(arm["arm"])


def _alone(arms: list[Mapping[str, Any]], arm: Mapping[str, Any], name: str) -> bool:
    """Whether no other arm has this arm's value of an axis."""
    values = [other[name] if name in other else other["axes"].get(name) for other in arms]
    return values.count(arm[name] if name in arm else arm["axes"].get(name)) == 1


def short_number(value: float) -> str:
    """`1.5e-4` for a small number, `1024` for a large one.

    >>> short_number(0.00015), short_number(0.0004), short_number(1024)
    ('1.5e-4', '4e-4', '1024')
    """
    return f"{value:g}" if value >= 0.01 else np.format_float_scientific(value, precision=2, trim="-", exp_digits=1)


def digits(value: float) -> str:
    """Three significant digits, whole from 100 on, without a power of ten.

    >>> digits(2.31703), digits(0.0044), digits(1873.4), digits(32.0)
    ('2.32', '0.0044', '1,873', '32')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
