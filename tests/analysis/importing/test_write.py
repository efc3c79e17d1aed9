"""An imported run as a trial on disk, read back by the loader."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.importing.run import Evaluation, ImportedRun, Update
from analysis.importing.write import config_of, records_of, write_trial
from analysis.records import read_lines


def update(step: int, score: float, **more: object) -> Update:
    """An update of 8 responses that takes 3 s, 1 s of it sampling."""
    return replace(
        Update(
            step=step,
            samples_before=8 * (step - 1),
            samples_trained=8 * step,
            scores={"train": score},
            metrics={"reward/mean": score},
            seconds={"generate": 1.0, "train": 2.0},
            optimizer_steps=2,
            tokens=40,
            lr=1e-6,
        ),
        **more,
    )


RUN = ImportedRun(
    name="a",
    source=Path("a.log"),
    system="verl",
    num_prompts=4,
    group_size=2,
    updates=(update(1, 0.1), update(2, 0.2, apart_s={"evaluate": 5.0, "checkpoint": 4.0}), update(3, 0.3)),
    evals=(Evaluation(0, {"val": 0.05}), Evaluation(16, {"val": 0.25}), Evaluation(24, {"val": 0.35})),
    curves=("val", "train"),
)


def test_records_stand_in_order_of_n_and_training_scores_before_their_update() -> None:
    records = list(records_of(RUN))
    assert [(r["kind"], r["samples_trained"], r["metrics"]) for r in records] == [
        ("eval", 0, {"train": 0.1, "val": 0.05}),
        ("train", 8, {"reward/mean": 0.1}),
        ("eval", 8, {"train": 0.2}),
        ("train", 16, {"reward/mean": 0.2}),
        ("eval", 16, {"train": 0.3, "val": 0.25}),
        ("train", 24, {"reward/mean": 0.3}),
        ("eval", 24, {"val": 0.35}),
    ]
    # Two optimizer steps an update; 3 s each, and 9 s of evaluation and checkpoint in the second.
    assert [(r["optimizer_steps"], r["wall_s"]) for r in records if r["kind"] == "train"] == [
        (2, 3.0),
        (4, 15.0),
        (6, 18.0),
    ]
    assert records[3]["seconds_apart"] == {"evaluate": 5.0, "checkpoint": 4.0}


def test_a_gap_leaves_the_wall_clock_unknown_but_not_the_counts() -> None:
    records = list(records_of(replace(RUN, updates=(RUN.updates[0], RUN.updates[2]), evals=())))
    train = [r for r in records if r["kind"] == "train"]
    assert [(r["step"], r["samples_trained"], r["optimizer_steps"]) for r in train] == [(1, 8, 2), (3, 24, 6)]
    assert train[0]["wall_s"] == 3.0 and "wall_s" not in train[1]


def test_what_is_not_finite_or_not_known_is_absent(tmp_path: Path) -> None:
    odd = update(1, float("nan"), metrics={"loss/actor": float("inf")}, lr=None, tokens=None)
    run = replace(RUN, updates=(odd,), evals=(Evaluation(8, {"val": 0.5}),))
    write_trial(tmp_path / "a", run, config_of(run))
    lines, bad = read_lines(tmp_path / "a" / "metrics.jsonl")
    assert bad == 0 and [line["kind"] for line in lines] == ["train", "eval"]
    assert lines[0]["metrics"] == {} and not {"lr", "tokens_generated"} & set(lines[0])


def test_a_trial_is_whole_on_disk(tmp_path: Path) -> None:
    write_trial(tmp_path / "a", RUN, config_of(RUN))
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "config.json",
        "metrics.jsonl",
        "outcome.json",
        "provenance.json",
    ]
    outcome = json.loads((tmp_path / "a" / "outcome.json").read_text())
    assert (outcome["status"], outcome["samples_trained"], outcome["optimizer_steps"]) == ("completed", 24, 6)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["imported"]["points"] == {"val": 3, "train": 3} and config["budget_samples"] == 24


def test_two_logs_of_one_run_have_one_fingerprint() -> None:
    longer = replace(RUN, updates=tuple(update(step, 0.1 * step + 1e-5) for step in range(1, 5)))
    rounded = replace(RUN, name="b", updates=tuple(update(step, round(0.1 * step, 3)) for step in range(1, 5)))
    marks = [config_of(run)["imported"]["fingerprint"] for run in (longer, rounded)]
    assert marks[0] == marks[1] != config_of(replace(longer, group_size=4))["imported"]["fingerprint"]
    constant = replace(RUN, updates=tuple(update(step, 0.0) for step in range(1, 9)))
    assert config_of(constant)["imported"]["fingerprint"] is None


@pytest.mark.parametrize("generated", [None, 20])
def test_dropped_samples_are_those_generated_beyond_the_trained(generated: int | None) -> None:
    run = replace(RUN, updates=(update(1, 0.1, samples_generated=generated),))
    (record,) = [r for r in records_of(run) if r["kind"] == "train"]
    assert (record["samples_generated"], record["samples_dropped"]) == ((8, 0) if generated is None else (20, 12))
