"""Sixty trials in which a worker, a node or the driver is killed every twenty seconds are those of a quiet run."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.soak.chaos import AMONG_THE_FIRST, MOST, NUM_FAULTS, NUM_TRIALS, SWEEP, chaos, compare, draw_faults


def test_faults_are_drawn_in_advance_and_rare_kinds_stay_rare() -> None:
    faults = draw_faults(0)
    assert faults == draw_faults(0) != draw_faults(1)
    kinds = Counter(fault.kind for fault in faults)
    assert kinds == {**MOST, "worker": NUM_FAULTS - sum(MOST.values())}
    assert 10 < sum(fault.wait_s for fault in faults) / NUM_FAULTS < 30


def trial(folder: Path, rewards: dict[int, float], log: str = "attempt 1 starts") -> None:
    """A trial of updates of 32 samples, as it is left when it is done."""
    folder.mkdir(parents=True)
    record = {"kind": "train", "wall_s": 0.0}
    lines = [json.dumps({**record, "samples_trained": n, "metrics": {"reward": r}}) for n, r in rewards.items()]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    outcome = {"status": "completed", "samples_trained": SWEEP["budget_samples"], "reason": ""}
    (folder / "outcome.json").write_text(json.dumps(outcome))
    (folder / "trial.log").write_text(log)


def test_what_is_wrong_is_seen(tmp_path: Path) -> None:
    expected, found = (tmp_path / name / "chaos" / "trials" for name in ("undisturbed", "results"))
    for name in ("right", "lost", "other", "twice", "missing"):
        trial(expected / name, {32: 0.1, 64: 0.2, 96: 0.3})
    trial(found / "right", {32: 0.1, 64: 0.2, 96: 0.3})
    with open(found / "right" / "metrics.jsonl", "a") as file:  # computed again, to the same numbers
        file.write((found / "right" / "metrics.jsonl").read_text().splitlines()[1] + "\n")
    trial(found / "lost", {32: 0.1, 96: 0.3})
    trial(found / "other", {32: 0.1, 64: 0.2, 96: 0.30000001})
    trial(found / "twice", {32: 0.1, 64: 0.2, 96: 0.3}, "attempt 1 starts\nx completed: x\nattempt 2 starts")
    output = (
        "P8 seed 1: completed\n" * 2 + "P8-G4-sqrt  20 completed 1\n" * 2 + "P32-G4-sqrt  19 completed, 1 failed 1\n"
    )
    assert compare(tmp_path, 3, output + "written in x") == (
        32 + 96,
        32,
        [
            "the driver ended with 3",
            "lost: other records than undisturbed",
            "missing: other records than undisturbed",
            "missing: has no outcome",
            "other: other records than undisturbed",
            "twice: run again after its end",
            "the final table shows 59 completed",
            "told twice: P8 seed 1: completed",
        ],
    )


@pytest.mark.soak
def test_sixty_trials_in_chaos_are_those_of_a_quiet_run(tmp_path: Path) -> None:
    figures = chaos(tmp_path / "chaos", seed=0)
    print(json.dumps(asdict(figures), indent=2))
    assert figures.wrong == ()
    assert figures.samples_lost == 0 and figures.samples == NUM_TRIALS * SWEEP["budget_samples"]
    assert figures.survived == sum(figures.injected.values()) >= AMONG_THE_FIRST
