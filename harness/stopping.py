"""When a trial has shown what it is asked for: the target, reached and held well past that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.config import TrialConfig
from harness.tracking.jsonl import read_records

LEAST_EVALUATIONS_PAST = 2


def held_from(scores: Sequence[tuple[int, float]], target: float) -> int | None:
    """N1: samples at the first evaluation after the last one below the target; None while the last is below it.

    >>> held_from([(0, 0.2), (64, 0.75), (128, 0.6), (192, 0.7), (256, 0.8)], target=0.7)
    192
    >>> held_from([(0, 0.2), (64, 0.6)], target=0.7), held_from([(0, 0.9)], target=0.7)
    (None, 0)
    """
    found = None
    for samples, score in scores:
        if score < target:
            found = None
        elif found is None:
            found = samples
    return found


def is_well_past(scores: Sequence[tuple[int, float]], target: float, frac: float, samples_trained: int) -> bool:
    """Whether samples_trained >= (1 + frac) N1 and at least two evaluations lie after N1.

    >>> scores = [(0, 0.2), (64, 0.7), (128, 0.9), (192, 0.8)]
    >>> [is_well_past(scores, 0.7, frac, 192) for frac in (0.5, 2.0, 2.1)]  # 96, 192, 198.4
    [True, True, False]
    >>> is_well_past(scores[:3], 0.7, 0.5, 128)  # one evaluation after N1
    False
    """
    first = held_from(scores, target)
    if first is None:
        return False
    past = sum(samples > first for samples, _ in scores)
    return past >= LEAST_EVALUATIONS_PAST and samples_trained >= (1 + frac) * first


class Held:
    """Follows the evaluations of one trial."""

    def __init__(self, config: TrialConfig, scores: Sequence[tuple[int, float]]) -> None:
        self._frac, self._metric, self._target = (
            config.stop_past_target_frac,
            config.evaluation.metric,
            config.evaluation.target,
        )
        self._scores = list(scores)

    def add(self, samples_trained: int, metrics: Mapping[str, float]) -> None:
        if self._metric in metrics:
            self._scores.append((samples_trained, metrics[self._metric]))

    def well_past(self, samples_trained: int) -> str:
        """Why the trial ends here; empty while it does not."""
        if self._frac is None or not is_well_past(self._scores, self._target, self._frac, samples_trained):
            return ""
        first = held_from(self._scores, self._target)
        return f"the score held the target {self._target:g} from {first:,} samples on (stop_past_target_frac)"


def evaluations(metrics_path: Path, metric: str, up_to: int) -> list[tuple[int, float]]:
    """(samples, score) of the evaluations on record, up to where a trial goes on: later ones are made again."""
    records, _ = read_records(metrics_path)
    scores = {
        record["samples_trained"]: record["metrics"][metric]
        for record in records
        if record["kind"] == "eval" and metric in record["metrics"] and record["samples_trained"] <= up_to
    }
    return sorted(scores.items())
