"""The loop runs what it is told, keeps a line on it, stops where it should, and goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.advise.brain import Answer
from harness.advise.budget import Budget, parse_budget, samples_used, seconds_used
from harness.advise.hand import Hand
from harness.advise.loop import run_advice
from harness.advise.plan import make_study
from harness.config import SweepConfig
from harness.courier import Home
from harness.errors import InputError
from harness.execution import ExecutionConfig
from harness.plan_file import read_plan
from harness.run_dir import RunDir
from harness.tracking.jsonl import read_objects
from tests.harness.faults import FUNCTIONS, InlinePool, set_faults

SWEEP: dict[str, Any] = {
    "sweep": "faults",
    "question": "which batch?",
    "batch": {"group_size": 8},
    "optimizer": {"lr": 1e-3},
    "evaluation": {"every_samples": 128, "num_prompts": 8},
    "timing": {"rounds": 2},
    "tracking": {"wandb": False},
    "budget_samples": 512,
    "seeds": 5,
    "advise": {"first_seed": 1},  # the chain of a fault trial starts from seed / 10
    "reference": {"batch.num_prompts": 2},
    "arms": [{"batch.num_prompts": [2, 8]}],
}
SMALL, LARGE = "P2-G8-sqrt-lr1e-3", "P8-G8-sqrt-lr1e-3"


def hand(results: Path) -> Hand:
    """Real sweeps of cheap trials, in this process."""

    @contextmanager
    def open_pool(execution: ExecutionConfig, most: int, home: Home) -> Iterator[InlinePool]:
        yield InlinePool(min(2, most))

    return Hand(make_study(SweepConfig.model_validate(SWEEP)), results, FUNCTIONS, open_pool)


def run(arm: str, seed: int, **more: Any) -> dict[str, Any]:
    return {"do": "run", "arm": arm, "seed": seed, "why": f"{arm} is not known", **more}


class Scripted:
    """Answers from a list, the last one again and again: what is to be run next."""

    def __init__(self, *answers: Sequence[dict[str, Any]]) -> None:
        self.answers, self.asked = list(answers), 0

    def __call__(self, folder: Path, workers: int) -> Answer:
        assert (folder / "plan.json").exists() and json.loads((folder / "advise.json").read_text())["format"] == 1
        items = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        advice = {
            "arm": LARGE,
            "r_T": {"estimate": 0.625},
            "runner_up": {"arm": SMALL},
            "probability_within_tolerance": 0.97,
        }
        content = {"stage": "runs", "why": "not told apart", "separated": not items, "next": list(items)}
        return Answer.of(content | {"advice": None if items else advice}, "Take P8.")


def log(results: Path) -> list[dict[str, Any]]:
    return read_objects(results / "faults-advise" / "advise.log.jsonl")[0]


def test_it_runs_what_is_asked_for_until_the_advice_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = Scripted([run(SMALL, 1), run(SMALL, 2)], [{"do": "time", "arms": [SMALL, LARGE], "why": "q"}], [])
    assert run_advice(hand(tmp_path), Budget(), ask) == 0 and ask.asked == 3
    lines = log(tmp_path)
    assert [(line["step"], line["do"], line["samples"], line["exit_code"]) for line in lines] == [
        (1, "run", 1024, 0), (2, "time", 0, 0),
    ]  # fmt: skip
    assert lines[0]["what"] == [f"{SMALL} seed 1", f"{SMALL} seed 2"] and lines[1]["what"] == [SMALL, LARGE]
    # An arm that never ran is timed when it is asked for: two rounds after a warm-up.
    timed = [line["arm"] for line in read_objects(tmp_path / "faults-advise" / "timing.jsonl")[0]]
    assert sorted(timed) == [SMALL, SMALL, LARGE, LARGE]
    printed = capsys.readouterr().out
    assert f"  next: run {SMALL} seed 1, {SMALL} seed 2: {SMALL} is not known" in printed
    assert f"so far {LARGE}, r_T 0.62, within the tolerance of the fastest with probability 97%" in printed
    assert "ended: the advice stands\nTake P8." in printed
    # 1,024 of 2 arms x 5 seeds x 512 samples
    assert "1,024 samples" in printed and "20% of the 5,120 samples of the whole sweep" in printed
    assert "next: python -m analysis report" not in printed and "samples/s" not in printed


def test_more_rounds_of_timing_can_be_asked_for(tmp_path: Path) -> None:
    both = {"do": "time", "arms": [SMALL, LARGE], "why": "q"}
    assert run_advice(hand(tmp_path), Budget(), Scripted([both], [both | {"rounds": 5}], [])) == 0
    timed = read_objects(tmp_path / "faults-advise" / "timing.jsonl")[0]
    # Two rounds of the file, then what is missing to five.
    assert [line["round"] for line in timed] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [line["what"] for line in log(tmp_path)] == [[SMALL, LARGE], [f"{SMALL} (5 rounds)", f"{LARGE} (5 rounds)"]]


def test_the_same_call_repeats_nothing(tmp_path: Path) -> None:
    items = [run(SMALL, 1)]
    assert run_advice(hand(tmp_path), Budget(), Scripted(items, [])) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "faults-advise" / "trials").rglob("*") if path.is_file()}
    assert run_advice(hand(tmp_path), Budget(), Scripted(items, [])) == 0
    assert before == {path: path.read_bytes() for path in before}
    assert [line["samples"] for line in log(tmp_path)] == [512, 0]


@pytest.mark.parametrize(("budget", "trials"), [("1100samples", 2), ("1000samples", 1), ("500samples", 0)])
def test_no_step_begins_that_would_go_past_the_budget(
    tmp_path: Path, budget: str, trials: int, capsys: pytest.CaptureFixture[str]
) -> None:
    every = [run(SMALL, 1 + n) for n in range(4)]

    def ask(folder: Path, workers: int) -> Answer:
        done = len(list(folder.glob("trials/*/outcome.json")))
        return Answer.of({"next": every[done:], "separated": False}, "")

    assert run_advice(hand(tmp_path), parse_budget(budget), ask) == 0
    assert samples_used([tmp_path / "faults-advise"]) == 512 * trials
    printed = capsys.readouterr().out
    assert f"is used: run {SMALL} seed {1 + trials}" in printed and "would take about 512 samples" in printed
    # What earlier calls used counts.
    assert run_advice(hand(tmp_path), parse_budget(budget), ask) == 0
    assert samples_used([tmp_path / "faults-advise"]) == 512 * trials


def test_time_is_counted_over_all_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ticking(step: float) -> Callable[[], float]:
        now = [0.0]

        def clock() -> float:
            now[0] += step
            return now[0]

        return clock

    ask = Scripted([run(SMALL, 1)], [run(SMALL, 2)], [run(SMALL, 3)], [])
    assert run_advice(hand(tmp_path), Budget(seconds=60), ask, ticking(10.0)) == 0
    used = sum(line["seconds"] for line in log(tmp_path))
    assert 20 <= used <= 60 and "the budget of 0:01:00 is used" in capsys.readouterr().out
    done = samples_used([tmp_path / "faults-advise"])
    assert run_advice(hand(tmp_path), Budget(seconds=60), Scripted([run(SMALL, 5)]), ticking(10.0)) == 0
    assert samples_used([tmp_path / "faults-advise"]) <= done + 512


def test_a_trial_that_fails_is_not_asked_for_for_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = hand(tmp_path)
    bad = next(t for t in made.study.plan.trials if (t.arm, t.seed) == (SMALL, 1))
    set_faults(tmp_path, {bad.trial_id: {"raise_at": 256}})
    ask = Scripted([run(SMALL, 1)])
    assert run_advice(made, Budget(), ask) == 1 and ask.asked == 2
    assert "has just been run and did not end well" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("items", "told"),
    [
        ([run("P9", 1)], "asks for P9 with seed 1, which is not in the plan"),
        ([{"do": "time", "arms": ["P9"], "why": ""}], "asks for P9, which is not in the plan"),
        ([{"do": "run", "why": ""}], "next: run lacks arm, seed"),
        ([{"do": "rm", "why": ""}], r"next\.0\.do"),
        ([{"do": "branch", "arm": LARGE, "seed": 1, "trial": "../x", "at_samples": 64, "samples": 64,
           "moments": "fresh", "why": ""}], "is no trial of this advice"),
    ],
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_refused(tmp_path: Path, items: list[dict[str, Any]], told: str) -> None:
    with pytest.raises(InputError, match=told):
        run_advice(hand(tmp_path), Budget(), Scripted(items))


@pytest.mark.parametrize(
    "text", ["", "2", "h", "2d", "-1h", "0s", "two hours", "1e3samples", "1,0h", "1,00samples", "٣h"]
)
def test_a_budget_without_a_number_and_unit_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="such as 2h, 45m, 90s or 600000samples"):
        parse_budget(text)


def test_seconds_that_are_none_count_for_nothing(tmp_path: Path) -> None:
    log = tmp_path / "advise.log.jsonl"
    log.write_text("".join(f'{{"seconds": {spent}}}\n' for spent in ("5", "NaN", "1e999", "-1e9", "null", "2.5")))
    assert seconds_used(log, [], workers=2) == 7.5


def test_ctrl_c_keeps_everything_and_the_same_call_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = hand(tmp_path)
    events, calls = InlinePool.events, [0]

    def interrupted(self: InlinePool, timeout_s: float) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return events(self, timeout_s)

    monkeypatch.setattr(InlinePool, "events", interrupted)
    set_faults(tmp_path, {"*": {"pause_s": 0.06}})  # 32 steps: events after half a second each
    assert run_advice(made, Budget(), Scripted([run(SMALL, 1)], [])) == 130
    assert [line["exit_code"] for line in log(tmp_path)] == [130] and 0 < log(tmp_path)[0]["samples"] < 512
    set_faults(tmp_path, {})
    assert run_advice(hand(tmp_path), Budget(), Scripted([run(SMALL, 1)], [])) == 0
    assert sum(line["samples"] for line in log(tmp_path)) == 512


@pytest.mark.parametrize("name", ["advise.json", "advise.log.jsonl", "advise.step.json"])
def test_a_folder_in_the_way_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "faults-advise" / name).mkdir(parents=True)
    with pytest.raises(InputError, match=f"{name}: a folder is in the way of this file; move it away"):
        run_advice(hand(tmp_path), Budget(), Scripted([]))


def test_a_later_call_runs_again_what_failed_unless_the_advice_stands(tmp_path: Path) -> None:
    made = hand(tmp_path)
    bad = next(t for t in made.study.plan.trials if (t.arm, t.seed) == (SMALL, 1))
    set_faults(tmp_path, {bad.trial_id: {"raise_at": 256}})
    assert run_advice(made, Budget(), Scripted([run(SMALL, 1)], [])) == 1
    set_faults(tmp_path, {})
    assert run_advice(hand(tmp_path), Budget(), Scripted([])) == 0 and len(log(tmp_path)) == 1
    # The brain has nothing to say of it; without the samples for it the call goes on with what there is.
    timing = {"do": "time", "arms": [SMALL], "why": "q"}
    assert run_advice(hand(tmp_path), Budget(samples=300), Scripted([timing], [])) == 0
    assert run_advice(hand(tmp_path), Budget(), Scripted([run(LARGE, 2)], [run(LARGE, 2)], [])) == 0
    assert [(line["what"], line["exit_code"]) for line in log(tmp_path)] == [
        ([f"{SMALL} seed 1"], 1), ([SMALL], 0), ([f"{SMALL} seed 1"], 0), ([f"{LARGE} seed 2"], 0),
    ]  # fmt: skip


def branch(made: Hand, at_samples: int) -> dict[str, Any]:
    parent = next(t for t in made.study.plan.trials if (t.arm, t.seed) == (SMALL, 1))
    return {"do": "branch", "arm": LARGE, "seed": 1, "trial": f"faults-advise/trials/{parent.trial_id}", "why": "r_N",
            "at_samples": at_samples, "samples": 128, "moments": "restored"}  # fmt: skip


def checkpoints(made: Hand) -> RunDir:
    """Of the parent: whole ones at 128, 256 and 384 samples."""
    run = RunDir(made.results / branch(made, 0)["trial"])
    for samples in (128, 256, 384):
        run.save_checkpoint({"samples": samples, "value": 0.1}, samples, kept=9)
    return run


def branched(results: Path) -> list[int]:
    plan = read_plan(results / "faults-advise-branches")
    return [trial.config.first_samples for trial in plan.trials] if plan else []


def test_a_branch_starts_at_the_nearest_checkpoint_that_is_whole(tmp_path: Path) -> None:
    made = hand(tmp_path)
    run = checkpoints(made)
    whole = run.checkpoint_path(256).read_bytes()
    run.checkpoint_path(256).write_bytes(whole[:-100])
    turned = run.checkpoint_path(384).read_bytes()
    place = turned.index(b"samples")  # inside of the pickle, which the archive has a checksum of
    run.checkpoint_path(384).write_bytes(turned[:place] + b"S" + turned[place + 1 :])
    assert run_advice(made, Budget(), Scripted([branch(made, 300)], [])) == 0
    assert branched(tmp_path) == [128]


def test_without_checkpoints_the_advice_goes_on_without_branches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, asked = hand(tmp_path), []

    def ask(folder: Path, workers: int) -> Answer:
        points = json.loads((folder / "advise.json").read_text())["branch_points"]
        asked.append(points)
        done = len(list(folder.glob("trials/*/outcome.json")))
        items = [branch(made, 256), branch(made, 384)] if points else [run(LARGE, 2)][done:]
        return Answer.of({"next": items, "separated": False}, "")

    assert run_advice(made, Budget(), ask) == 0
    assert asked == [1, 1, 0, 0] and branched(tmp_path) == []
    printed = capsys.readouterr().out
    assert printed.count("it has no whole checkpoint") == printed.count("goes on without these branches") == 1
    # The next call asks for them once more, for there may be checkpoints again.
    checkpoints(made)
    asked.clear()
    assert run_advice(hand(tmp_path), Budget(), ask) == 0
    assert asked[0] == 1 and branched(tmp_path) == [256, 384]


def test_a_branch_that_failed_is_run_again_too(tmp_path: Path) -> None:
    made = hand(tmp_path)
    checkpoints(made)
    set_faults(tmp_path, {"*": {"raise_at": 128}})
    assert run_advice(made, Budget(), Scripted([branch(made, 256)], [])) == 1
    set_faults(tmp_path, {})
    assert run_advice(hand(tmp_path), Budget(), Scripted([run(LARGE, 2)], [run(LARGE, 2)], [])) == 0
    assert [(line["do"], line["exit_code"]) for line in log(tmp_path)] == [("branch", 1), ("branch", 0), ("run", 0)]


def test_the_step_of_a_killed_call_is_kept_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.advise.loop._Procedure._keep", lambda *_: None)
    assert run_advice(hand(tmp_path), Budget(), Scripted([run(SMALL, 1)], [])) == 0
    monkeypatch.undo()
    step = tmp_path / "faults-advise" / "advise.step.json"
    content = json.loads(step.read_text())
    step.write_text(json.dumps(content | {"began_s": content["began_s"] - 40}))
    assert log(tmp_path) == []
    for _ in range(2):
        assert run_advice(hand(tmp_path), Budget(), Scripted([])) == 0
        (line,) = log(tmp_path)
        assert (line["step"], line["what"], line["samples"], line["exit_code"]) == (1, [f"{SMALL} seed 1"], 512, None)
        assert 40 <= line["seconds"] < 50 and not step.exists()
    # Killed between the line and the end of the step: the line is there.
    step.write_text(json.dumps(content))
    assert run_advice(hand(tmp_path), Budget(), Scripted([])) == 0 and len(log(tmp_path)) == 1
