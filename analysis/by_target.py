"""r_N, verdict and recommendation at every round target that the reference reaches: how much hangs on the choice."""

from __future__ import annotations

from typing import Any

from analysis.plain import interval_json
from analysis.study import Study
from analysis.targets import reached_levels


def studies_by_target(study: Study) -> dict[float, Study]:
    """The study at every round level that each seed of the reference reaches, and at its own target; by target."""
    curves = [(curve.samples_K, curve.scores_K) for curve in study.groups[study.reference]]
    if not curves or not study.learning:
        return {}
    own = study.sweep.target
    found = {level: study.at(level) for level in reached_levels(curves) if abs(level - own) > 1e-9}
    return dict(sorted((found | {own: study}).items()))


def by_target(study: Study) -> dict[str, Any]:
    """The key `targets` of report.json."""
    levels = [_level(target, other) for target, other in studies_by_target(study).items()]
    said = [level for level in levels if level["recommendation"]["arm"] is not None]
    found: dict[str, Any] = {"levels": levels, "recommendation": _agreement(study, said)}
    return found if len(levels) > 1 else found | {"flag": "the reference reaches no other round target"}


def _agreement(study: Study, levels: list[dict[str, Any]]) -> str | None:
    """Whether the recommendation at the study's target is that at the others too, or one not told apart from it."""
    own = study.recommendation
    if own.arm is None or len(levels) < 2 or len(study.arms) < 2:
        return None
    others = [level["recommendation"] for level in levels]
    if all(other["arm"] == own.arm for other in others):
        return "same"
    held = all(own.arm in (other["arm"], *other["ties"]) or other["arm"] in own.ties for other in others)
    return "not told apart" if held else "changes"


def _level(target: float, study: Study) -> dict[str, Any]:
    advice = study.recommendation
    arms = [
        {
            "arm": arm,
            "r_N": interval_json(study.r_N(arm)),
            "r_T": interval_json(study.r_T(arm)),
            "verdict": study.verdict(arm)[0],
            "aligned": study.aligned[arm],
        }
        for arm in study.arms
    ]
    recommendation = {"arm": advice.arm, "r_T": advice.r_T, "ties": list(advice.ties)}
    return {"target": target, "recommendation": recommendation, "arms": arms}
