"""A profile beside its bounds: its curves, their rates, and what they say in words."""

from __future__ import annotations

import numpy as np

from analysis.growth import Curve as Rates
from analysis.growth import Phase
from analysis.labels import digits
from analysis.profile_bound import Bound, bound_of
from analysis.profile_file import Curve, Profile
from analysis.words import interval

PHASES: tuple[Phase, ...] = ("generate", "train")
Beside = dict[str, list[tuple[Curve, Bound | None]]]


def with_bounds(profile: Profile) -> Beside:
    """Curves by phase, the reference's first, with the bound where there is one."""
    return {phase: [(curve, bound_of(profile, curve)) for curve in profile.of(phase)] for phase in PHASES}


def rates_of(profile: Profile) -> dict[Phase, Rates]:
    """The curve of the reference arm in each phase; arms of the same batch count as one."""
    found: dict[Phase, Rates] = {}
    for phase in PHASES:
        for curve in profile.of(phase)[:1]:
            logs_RA, batch_A = np.log(curve.rates_RA()), np.unique(curve.batch_A)
            merged_RA = np.stack([logs_RA[:, curve.batch_A == batch].mean(axis=1) for batch in batch_A], axis=1)
            reached = curve.knee is not None and curve.knee.reached
            knee = curve.knee.interval if curve.knee and reached else None
            found[phase] = Rates(batch_A, np.exp(merged_RA), "profile", knee)
    return found


def reference_batch(profile: Profile) -> int:
    """B of the reference arm; of the smallest where it was not measured."""
    batches = {point.arm: point.train_batch for curve in profile.curves for point in curve.points}
    return batches.get(profile.reference_arm, min(batches.values()))


def sentences(profile: Profile, curves: Beside) -> list[str]:
    """The profile in words."""
    machine = profile.machine
    found = [
        f"Profile of {profile.sweep}: {profile.rounds} rounds on {machine.device}, {machine.threads} thread"
        f"{'s' * (machine.threads > 1)} a process; lengths {profile.lengths}; {profile.ended}."
    ]
    if not machine.on_gpu and profile.load_before > 0.5:
        found.append(
            f"The machine had a load of {profile.load_before:.1f} before it began: others had a part in these seconds."
        )
    for phase, name in (("generate", "Generation"), ("train", "Training")):
        for curve, bound in curves[phase][:1]:
            found.append(f"{name}: {_knee(curve)}{_attained(bound)}.")
    limits = [curve.memory_limit for curve, _ in curves["generate"][:1] if curve.memory_limit]
    for limit in limits:
        most = "not known" if limit.responses is None else f"{limit.responses:,} responses in flight"
        found.append(f"Memory limit of generation: {most} ({limit.source}). Training splits a batch; it has none.")
    return found


def _knee(curve: Curve) -> str:
    knee, along = curve.knee, "responses in flight" if curve.phase == "generate" else "responses a batch"
    if knee is None:
        return "one batch, no knee"
    rate = f"{digits(knee.per_s)} responses/s"
    if not knee.reached:
        return f"no plateau up to {curve.batch_A[-1]:,} {along}, {rate} there"
    if knee.estimate is None:
        return f"the smallest batch, {curve.batch_A[0]:,} {along}, has its plateau of {rate} already"
    at = interval({"estimate": knee.estimate, "ci95": list(knee.ci95)}, 0)
    return f"{knee.plateau_frac:.0%} of a plateau of {rate} from {at} {along}"


def _attained(bound: Bound | None) -> str:
    if bound is None:
        return ""
    low, high = bound.share_A[0], bound.share_A[-1]
    return f"; from the smallest batch to the largest {low:.1%} to {high:.1%} of the bound ({bound.source})"
