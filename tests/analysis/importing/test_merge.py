"""Points of a logger become one row per step of one attempt."""

import math

from analysis.importing.merge import merged


def test_points_of_one_step_are_one_row_wherever_they_stand() -> None:
    """An evaluation that is logged after the next training row belongs to its own step."""
    points = [(1, {"reward": 0.1}), (2, {"reward": 0.2}), (1, {"eval": 0.5}), (3, {"reward": 0.3}), (2, {"eval": 0.6})]
    assert merged(points) == (
        [(1, {"reward": 0.1, "eval": 0.5}), (2, {"reward": 0.2, "eval": 0.6}), (3, {"reward": 0.3})],
        0,
    )


def test_a_resumed_run_replaces_all_that_was_written_from_there_on() -> None:
    """Steps 1 to 4 with an evaluation at 4, resumed from 2 and stopped after 3: step 4 is of a policy thrown away."""
    first = [(step, {"reward": step / 10}) for step in (1, 2, 3, 4)] + [(4, {"eval": 0.9})]
    assert merged([*first, (3, {"reward": 0.7})]) == (
        [(1, {"reward": 0.1}), (2, {"reward": 0.2}), (3, {"reward": 0.7})],
        2,
    )


def test_values_that_are_not_finite_are_missing() -> None:
    assert merged([(1, {"a": math.nan, "b": 1.0}), (2, {"a": math.inf})]) == ([(1, {"b": 1.0})], 0)
