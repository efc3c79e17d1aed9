"""A timing pass measures the policy that a trial starts from, whatever the trial would make of it."""

from pathlib import Path

from harness.timing import time_arm
from tests.harness.small import LEARNS, planned_trial


def test_a_rate_that_ruins_the_policy_changes_no_length_of_what_is_timed(tmp_path: Path) -> None:
    """The update that is counted comes after one that is not: at a rate of 1 its responses would be another policy's."""
    found = [time_arm(planned_trial(**LEARNS, optimizer__lr=lr), tmp_path, min_seconds=0.0) for lr in (1e-3, 1.0)]
    assert [one["updates"] for one in found] == [1, 1]
    assert found[0]["tokens"] == found[1]["tokens"] > 0
    assert found[0]["samples"] == found[1]["samples"] > 0
