"""Sixty trials in which a worker, a node or the driver is killed every twenty seconds are those of a quiet run."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.soak.chaos import MOST, NUM_FAULTS, NUM_TRIALS, chaos, draw_faults

pytestmark = pytest.mark.soak


def test_faults_are_drawn_in_advance_and_rare_kinds_stay_rare() -> None:
    faults = draw_faults(0)
    assert faults == draw_faults(0) != draw_faults(1)
    kinds = Counter(fault.kind for fault in faults)
    assert kinds == {**MOST, "worker": NUM_FAULTS - sum(MOST.values())}
    assert 10 < sum(fault.wait_s for fault in faults) / NUM_FAULTS < 30


def test_sixty_trials_in_chaos_are_those_of_a_quiet_run(tmp_path: Path) -> None:
    figures = chaos(tmp_path / "chaos", seed=0)
    print(json.dumps(asdict(figures), indent=2))
    assert figures.wrong == ()
    assert figures.samples_lost == 0 and figures.samples == NUM_TRIALS * 12288
    assert figures.survived == sum(figures.injected.values()) >= 4
