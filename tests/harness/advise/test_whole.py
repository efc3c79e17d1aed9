"""A whole advice on a task of seconds, real trials and the real brain: from nothing to a report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.advise.budget import Budget, samples_used
from harness.advise.hand import Hand
from harness.advise.loop import run_advice
from harness.advise.plan import make_study
from harness.config import SweepConfig
from harness.courier import Home
from harness.execution import ExecutionConfig
from harness.plan import Plan
from harness.run_dir import RunDir
from harness.tracking.jsonl import read_objects
from tests.harness.faults import InlinePool

SWEEP: dict[str, Any] = {
    "sweep": "tiny",
    "question": "which batch?",
    "model": {"name": "tiny-llama", "warm_start": {"steps": 60, "num_responses": 64, "lr": 2e-3}},
    "task": {"name": "reverse_digits", "num_digits": 3},
    "batch": {"group_size": 4},
    "optimizer": {"lr": 1.5e-4},
    "evaluation": {"every_samples": 128, "num_prompts": 64, "metric": "eval/expected_score", "target": 0.78},
    "timing": {"rounds": 2, "min_seconds": 0.05},
    "profile": {"least_rounds": 2, "min_seconds": 0.02, "limit_s": 1.0},
    "tracking": {"wandb": False},
    "budget_samples": 4096,
    "seeds": 5,
    "advise": {"rates": [1], "most_seeds": 2, "reference_seeds": 1, "branch_points": 1},
    "reference": {"batch.num_prompts": 4},
    "arms": [{"batch.num_prompts": [4, 16]}],
}


def hand(results: Path) -> Hand:
    @contextmanager
    def open_pool(execution: ExecutionConfig, most: int, home: Home) -> Iterator[InlinePool]:
        yield InlinePool(1)

    return Hand(make_study(SweepConfig.model_validate(SWEEP)), results, open_pool=open_pool)


@pytest.mark.slow
def test_from_nothing_to_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_advice(hand(tmp_path), Budget(samples=1000)) == 0
    # The first run may take its whole budget of samples.
    assert "is used: run P4-G4-sqrt seed 1000" in capsys.readouterr().out
    assert run_advice(hand(tmp_path), Budget()) == 0
    printed = capsys.readouterr().out
    folder = tmp_path / "tiny-advise"
    content = json.loads((folder / "advice" / "advice.json").read_text())
    assert content["next"] == [] and content["advice"]["arm"] in ("P4-G4-sqrt", "P16-G4-sqrt")
    assert content["cost"]["samples"] == samples_used([folder, tmp_path / "tiny-advise-branches"])
    lines = read_objects(folder / "advise.log.jsonl")[0]
    assert [line["do"] for line in lines][:3] == ["run", "time", "branch"] and {
        line["exit_code"] for line in lines
    } == {0}
    assert sum(line["samples"] for line in lines) == content["cost"]["samples"]
    # A full run ends well past the target; the branch is one of it, with the larger batch.
    reference = Plan.from_json((folder / "plan.json").read_text()).trials[0]
    outcome = RunDir(folder / "trials" / reference.trial_id).outcome()
    assert outcome is not None and "held the target 0.78" in outcome.reason and outcome.samples_trained < 4096
    branch = Plan.from_json((tmp_path / "tiny-advise-branches" / "plan.json").read_text()).trials[0].config
    assert branch.branch is not None and branch.branch.trial == f"tiny-advise/trials/{reference.trial_id}"
    assert branch.batch.num_prompts == 16 and branch.branch.at_samples < outcome.samples_trained
    report = folder / "advice" / "report.html"
    assert report.exists() and str(report) in printed and "use a batch of" in printed.lower()
    # Once more: nothing is left to run.
    assert run_advice(hand(tmp_path), Budget()) == 0
    assert len(read_objects(folder / "advise.log.jsonl")[0]) == len(lines)
