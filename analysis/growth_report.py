"""Speed alone, as report.json has it: how time grows with the batch beside the published ratios, and the profile."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.errors import InputError
from analysis.growth import Curve, Phase, beside_published
from analysis.profile_file import Profile, read_profile
from analysis.profile_summary import rates_of, sentences, with_bounds
from analysis.scales import Scales

COLUMNS: dict[Phase, str] = {"generate": "generate_s_per_sample", "train": "train_s_per_sample"}


def speed_report(scales: Scales) -> dict[str, Any]:
    """The keys `growth` and `profile` of report.json. Raises InputError where the profile cannot be used."""
    profile = read_profile(scales.study.sweep.path)
    profiled = rates_of(profile) if profile else {}
    known: dict[Phase, list[Curve]] = {}
    for phase in COLUMNS:
        found = profiled.get(phase), _timed(scales, phase)
        known[phase] = [curve for curve in found if curve is not None]
    reference_batch = scales.train_batch[scales.study.reference]
    return {"growth": beside_published(known, reference_batch), "profile": profile and _summary(profile)}


def speed_of(scales: Scales) -> tuple[dict[str, Any], list[str]]:
    """speed_report, and a sentence where the profile is wrong input and left out."""
    try:
        return speed_report(scales), []
    except InputError as error:
        return {"growth": [], "profile": None}, [str(error)]


def _summary(profile: Profile) -> dict[str, Any]:
    return {
        "lengths": profile.lengths,
        "rounds": profile.rounds,
        "ended": profile.ended,
        "device": profile.machine.device,
        "sentences": sentences(profile, with_bounds(profile)),
    }


def _timed(scales: Scales, phase: Phase) -> Curve | None:
    """From the timing pass, along the reference's rule; None without one.

    In mode streaming, and where fewer responses are in flight than a batch has, `generate` is not the time of a batch
    in flight.
    """
    study, column = scales.study, COLUMNS[phase]
    clock = study.clocks.get("timing")
    if clock is None:
        return None
    arms = {scales.train_batch[arm]: arm for arm in scales.family if not clock.of(arm).empty}
    if phase == "generate":
        arms = {batch: arm for batch, arm in arms.items() if _generates_at_once(scales, arm)}
    if len(arms) < 2:
        return None
    rounds = clock.rates[column].unstack("arm")[list(arms.values())].dropna()
    usable = rounds[(rounds > 0).all(axis=1)].to_numpy()
    return Curve(np.array(list(arms)), 1 / usable, "timing") if len(usable) else None


def _generates_at_once(scales: Scales, arm: str) -> bool:
    sweep = scales.study.sweep
    trial = next(trial for trial in sweep.plan.trials if trial.arm == arm)
    at_once = sweep.arms["in_flight"].to_dict()[arm] == scales.train_batch[arm]
    return at_once and trial.configured("execution", "mode") != "streaming"
