"""How far each way of growing the batch keeps samples to target: the largest B whose r_N is at most a tenth above 1.

A way is a learning-rate rule, a setting that follows the batch, or more responses to a prompt instead of more prompts.
Each starts at the reference batch: from its own arm there, where it has one (a way that changes the reference too, such
as weight decay), from the reference otherwise. What a way costs or gains at its start is told beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.critical import crossing_batch
from analysis.penalty import Interval
from analysis.study import BATCH_AXES, Study

REACH = 1.1
MORE_PROMPTS = "more prompts"


@dataclass(frozen=True)
class Reach:
    """One way of growing the batch.

    interval: the batch at which r_N against `start` passes REACH, in responses (bound "lower": not within its arms).
    start_r_N: r_N of `start` against the reference of the sweep. largest: the largest batch it was tried at.
    """

    way: str
    start: str
    start_r_N: Interval
    interval: Interval
    arms: tuple[str, ...]
    largest: int


def reaches(study: Study) -> list[Reach]:
    """Every way that has arms beyond the reference batch, the farthest first; [] with fewer than two ways."""
    axes, reference = study.sweep.arms, study.reference
    batches = {str(arm): int(batch) for arm, batch in axes["train_batch"].items()}
    centre = batches[reference]
    ways: dict[tuple[str, ...], list[str]] = {}
    for arm in study.arms:
        if batches[arm] >= centre and arm != reference and study.groups[arm]:
            ways.setdefault((*study.family(arm), _grows_by(study, arm)), []).append(arm)
    found = [reach for arms in ways.values() if (reach := _reach(study, arms, batches, centre)) is not None]
    return sorted(found, key=_distance, reverse=True) if len(found) > 1 else []


def _distance(reach: Reach) -> float:
    """The crossing, or where it is known to lie beyond."""
    return reach.interval.estimate or reach.interval.low or float(reach.largest)


def _grows_by(study: Study, arm: str) -> str:
    """MORE_PROMPTS, or more responses: an arm of the reference's family with another group size."""
    own, reference = (study.sweep.arms.loc[name].to_dict() for name in (arm, study.reference))
    same_family = study.family(arm) == study.family(study.reference)
    if same_family and own["group_size"] != reference["group_size"]:
        return f"{own['num_prompts']} prompts, more responses to each"
    return MORE_PROMPTS


def _reach(study: Study, arms: list[str], batch: Mapping[str, int], centre: int) -> Reach | None:
    samples = study.samples["interpolated"]
    beyond = sorted((arm for arm in arms if batch[arm] > centre), key=batch.__getitem__)
    if not beyond or len({batch[arm] for arm in beyond}) < len(beyond):
        return None
    start = next((arm for arm in arms if batch[arm] == centre), study.reference)
    batches = [centre, *(batch[arm] for arm in beyond)]
    interval = crossing_batch(batches, [samples[start], *(samples[arm] for arm in beyond)], study.spread, REACH)
    way = _grows_by(study, beyond[0])
    if way == MORE_PROMPTS:
        way = _differing(study, beyond[0]) or "the reference's rule"
    return Reach(way, start, study.r_N(start), interval, tuple(beyond), batches[-1])


def _differing(study: Study, arm: str) -> str:
    """What a way varies besides the batch, as `rule adam_sde` or `weight_decay 0.1, weight_decay_rule sqrt`."""
    axes = study.sweep.arms.drop(columns=BATCH_AXES, errors="ignore")
    own, reference = (axes.loc[name].to_dict() for name in (arm, study.reference))
    return ", ".join(
        f"{str(name).rpartition('.')[2]} {value}" for name, value in own.items() if str(value) != str(reference[name])
    )
