"""What load_sweep makes of good, damaged and foreign files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import analysis
from analysis.errors import InputError
from analysis.load import load_sweep
from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep, write_trial

SMALL = SweepTruth([ArmTruth(8), ArmTruth(32)], num_seeds=2, budget_samples=2048, every_samples=512)
TRIAL = "P32-G8-sqrt-s0"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return write_sweep(tmp_path / "small", SMALL)


def record(kind: str, samples: float, step: int | None = None, **metrics: float) -> dict[str, Any]:
    counters = {"samples_trained": samples, "samples_generated": samples, "optimizer_steps": 1, "wall_s": 1.0}
    return {"kind": kind, **counters, **({} if step is None else {"step": step}), "metrics": metrics}


def rewrite(sweep: Path, **changes: Any) -> None:
    plan = json.loads((sweep / "plan.json").read_text())
    (sweep / "plan.json").write_text(json.dumps(plan | changes))


def test_a_sweep_as_tables(sweep: Path) -> None:
    loaded = analysis.load_sweep(sweep)
    assert (loaded.name, loaded.reference_arm, loaded.metric, loaded.target) == (
        "small",
        "P8-G8-sqrt",
        "eval/score",
        0.7,
    )
    assert loaded.arms["train_batch"].to_dict() == {"P8-G8-sqrt": 64, "P32-G8-sqrt": 256}
    assert loaded.arms.loc["P32-G8-sqrt", "in_flight"] == 256
    assert loaded.trials.loc[TRIAL, "status"] == "completed"
    evals = loaded.evals[loaded.evals["trial_id"] == TRIAL]
    assert evals["samples_trained"].tolist() == [0, 512, 1024, 1536, 2048]
    updates = loaded.updates[loaded.updates["trial_id"] == TRIAL]
    assert updates["samples"].tolist() == [256] * 8
    assert updates["samples_before"].tolist() == list(range(0, 2048, 256))
    assert sorted(loaded.timing["round"].unique()) == [1, 2, 3, 4, 5]


def test_damaged_lines_are_skipped_and_counted(sweep: Path) -> None:
    path = sweep / "trials" / TRIAL / "metrics.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = lines[3][:40]
    lines[6:6] = ['{"kind": "train"}', "\x00\x00", '{"kind": "note", "samples_trained": 1, "metrics": {}}', "[1]"]
    lines[8:8] = ['{"kind": "eval", "samples_trained": NaN, "metrics": {}}']
    path.write_text("\n".join(lines) + '\n{"kind": "eval", "sam')
    loaded = load_sweep(sweep)
    assert loaded.trials.loc[TRIAL, "num_bad_lines"] == 7
    assert loaded.trials["num_bad_lines"].sum() == 7


def test_after_a_gap_the_samples_of_an_update_are_unknown(sweep: Path) -> None:
    """Steps 1, 2, 4: the counter grew by two updates, the seconds by one."""
    write_trial(sweep / "trials" / TRIAL, [record("train", 256 * step, step) for step in (1, 2, 4, 5)])
    loaded = load_sweep(sweep)
    samples = loaded.updates.loc[loaded.updates["trial_id"] == TRIAL, "samples"]
    assert samples.tolist() == pytest.approx([256, 256, np.nan, 256], nan_ok=True)


def test_a_resumed_trial_counts_each_sample_once(sweep: Path) -> None:
    """Killed at 1000, resumed from 500: the later attempt's 750 and 1000 replace the earlier ones."""
    first = [record("eval", n, loss=1.0) for n in (250, 500, 750, 1000)]
    second = [record("eval", n, loss=2.0) for n in (750, 1000, 1250)]
    write_trial(sweep / "trials" / TRIAL, first + second)
    loaded = load_sweep(sweep)
    rows = loaded.evals[loaded.evals["trial_id"] == TRIAL]
    assert rows["samples_trained"].tolist() == [250, 500, 750, 1000, 1250]
    assert rows["loss"].tolist() == [1, 1, 2, 2, 2]
    assert loaded.trials.loc[TRIAL, "num_superseded"] == 2


def test_a_resumed_attempt_that_died_early_keeps_what_lies_beyond_it(sweep: Path) -> None:
    """Other sample counts in the second attempt (300 and 700): what it passed over, 500, is gone; 1000 stays."""
    write_trial(sweep / "trials" / TRIAL, [record("eval", n, loss=float(n)) for n in (250, 500, 1000, 300, 700)])
    loaded = load_sweep(sweep)
    assert loaded.evals.loc[loaded.evals["trial_id"] == TRIAL, "loss"].tolist() == [250, 300, 700, 1000]


def test_statuses_without_an_outcome(sweep: Path) -> None:
    (sweep / "trials" / TRIAL / "outcome.json").unlink()
    for file in (sweep / "trials" / "P8-G8-sqrt-s1").iterdir():
        file.unlink()
    loaded = load_sweep(sweep)
    assert loaded.trials.loc[TRIAL, "status"] == "unfinished"
    assert loaded.trials.loc["P8-G8-sqrt-s1", "status"] == "missing"
    assert TRIAL not in loaded.finished.index


def test_the_last_line_of_a_timing_round_counts(sweep: Path) -> None:
    line = json.loads((sweep / "timing.jsonl").read_text().splitlines()[-1]) | {"samples": 99}
    with (sweep / "timing.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    timing = load_sweep(sweep).timing
    assert timing.loc[(timing["round"] == 5) & (timing["arm"] == "P32-G8-sqrt"), "samples"].tolist() == [99]


def test_not_finite_metrics_are_missing(sweep: Path) -> None:
    write_trial(sweep / "trials" / TRIAL, [record("eval", 0, loss=float("nan")), record("eval", 9, loss=float("inf"))])
    loaded = load_sweep(sweep)
    assert loaded.evals.loc[loaded.evals["trial_id"] == TRIAL, "loss"].isna().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "format 2; this version reads format 1"),
        ({"reference_arm": "P9"}, "reference arm 'P9' is none of P32-G8-sqrt, P8-G8-sqrt"),
        ({"target": {"metric": "eval/score"}}, "'value'"),
        ({"trials": None}, "TypeError"),
    ],
)
def test_an_unusable_plan_is_one_sentence(sweep: Path, changes: dict[str, Any], message: str) -> None:
    rewrite(sweep, **changes)
    with pytest.raises(InputError, match=message):
        load_sweep(sweep)


def test_the_same_arm_and_seed_twice_is_refused(sweep: Path) -> None:
    trials = json.loads((sweep / "plan.json").read_text())["trials"]
    rewrite(sweep, trials=[*trials, trials[0] | {"trial_id": "again"}])
    with pytest.raises(InputError, match="P8-G8-sqrt-s0 and again are the same arm with the same seed"):
        load_sweep(sweep)


def test_a_folder_without_a_plan_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no plan.json: name the folder of one sweep"):
        load_sweep(tmp_path)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        load_sweep(tmp_path)


def test_a_target_that_is_no_number_is_refused(sweep: Path) -> None:
    with pytest.raises(InputError, match="target nan"):
        load_sweep(sweep, target=float("nan"))
