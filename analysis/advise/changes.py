"""What would change the answer: other targets, a slower trainer or generation, half the machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.advise.advice import Advice
from analysis.advise.decide import Decision
from analysis.advise.evidence import Evidence, Speed
from analysis.targets import reached_levels

MOST_TARGETS = 2


def changes(advice: Advice) -> list[dict[str, Any]]:
    """The fastest arm under each change, with its time over that of the arm advised now."""
    decision = advice.decision
    current = decision.advised or decision.leader
    if current is None or advice.study is None or len(decision.timed) < 2:
        return []
    found = []
    for target in _targets(advice):
        other = Decision(advice.evidence_at(advice.study.at(target)), decision.rule, decision.prior)
        found.append(_change(f"target {target:g}", other, current))
    speed = decision.evidence.speed
    if all(math.isfinite(one.train_frac) and math.isfinite(one.generate_frac) for one in speed.values()):
        for what, slower in (("a trainer twice as slow", "train_frac"), ("generation twice as slow", "generate_frac")):
            found.append(_change(what, _with(decision, _scaled(speed, slower)), current))
    halved = half_machine(decision.evidence)
    if halved:
        found.append(_change("half the machine, GPUs or cores", _with(decision, halved), current))
    return found


def _targets(advice: Advice) -> list[float]:
    """Up to two round levels on either side of the target that every run of the reference reached."""
    assert advice.study is not None
    curves = [(c.samples_K, c.scores_K) for c in advice.study.groups[advice.reference]]
    levels = reached_levels(curves) if curves else []
    target = advice.sweep.target
    below = [x for x in levels if x < target - 1e-9][-MOST_TARGETS:]
    return below + [x for x in levels if x > target + 1e-9][:MOST_TARGETS]


def _change(what: str, other: Decision, current: str) -> dict[str, Any]:
    best = other.leader
    ratio = 1.0 if best is None else math.exp(other.mean_log_T[current] - other.mean_log_T[best])
    return {"what": what, "arm": best, "changes": ratio > 1 + other.rule.tolerance, "advised_over_best": ratio}


def _with(decision: Decision, speed: Mapping[str, Speed]) -> Decision:
    return Decision(replace(decision.evidence, speed=speed), decision.rule, decision.prior)


def _scaled(speed: Mapping[str, Speed], part: str) -> dict[str, Speed]:
    """Twice the seconds in one part: 1/q' = (1 + share) / q."""
    return {arm: replace(one, log_q=one.log_q - math.log1p(getattr(one, part))) for arm, one in speed.items()}


def half_machine(evidence: Evidence) -> dict[str, Speed]:
    """log q where each GPU takes twice the responses: an update of B then takes what one of 2 B took, t'(B) = t(2 B).

    By log-log interpolation of the seconds of an update over B within a family, beyond the largest by the last slope.
    Empty with fewer than two batches.

    >>> from analysis.advise.evidence import Candidate
    >>> own = tuple(Candidate(f"P{p}", p, 1, f"P{p}") for p in (1, 2, 4))
    >>> speed = {"P1": Speed(0.0, 0.0), "P2": Speed(math.log(2), 0.0), "P4": Speed(math.log(2), 0.0)}
    >>> found = half_machine(Evidence(own, "P1", speed=speed))  # 1, 1 and 2 seconds become 1, 2 and 4
    >>> [round(math.exp(found[arm].log_q), 3) for arm in ("P1", "P2", "P4")]
    [1.0, 1.0, 1.0]
    """
    found: dict[str, Speed] = {}
    for family in dict.fromkeys(c.family for c in evidence.candidates):
        own = [c for c in evidence.candidates if c.family == family and c.arm in evidence.speed]
        by_batch = {c.train_batch: math.log(c.train_batch) - evidence.speed[c.arm].log_q for c in own}
        if len(by_batch) < 2:
            return {}
        batch_A = np.log(sorted(by_batch))
        seconds_A = np.array([by_batch[batch] for batch in sorted(by_batch)])
        time = _extended(batch_A, seconds_A)
        for c in own:
            log_q = math.log(c.train_batch) - time(math.log(2 * c.train_batch))
            found[c.arm] = replace(evidence.speed[c.arm], log_q=log_q)
    return found


def _extended(x_A: np.ndarray, y_A: np.ndarray) -> Callable[[float], float]:
    """Interpolation that goes on with the last slope."""

    def at(x: float) -> float:
        if x <= x_A[-1]:
            return float(np.interp(x, x_A, y_A))
        return float(y_A[-1] + (x - x_A[-1]) * (y_A[-1] - y_A[-2]) / (x_A[-1] - x_A[-2]))

    return at
