"""What load_sweep makes of good, damaged and foreign files."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import analysis
from analysis.errors import InputError
from analysis.load import load_sweep, provenance_of
from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep, write_trial

SMALL = SweepTruth([ArmTruth(8), ArmTruth(32)], num_seeds=2, budget_samples=2048, every_samples=512)
TRIAL = "P32-G8-sqrt-s0"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return write_sweep(tmp_path / "small", SMALL)


def record(kind: str, samples: float, step: int | None = None, **metrics: float) -> dict[str, Any]:
    counters = {"samples_trained": samples, "samples_generated": samples, "optimizer_steps": 1, "wall_s": 1.0}
    return {"kind": kind, **counters, **({} if step is None else {"step": step}), "metrics": metrics}


def rewrite(folder: Path, /, **changes: Any) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(plan | changes))


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


def test_a_record_may_say_itself_where_its_update_began(sweep: Path) -> None:
    """Steps 2, 6, 10 of an import, each of 256 samples; what lies at or beyond the record's own N is no beginning."""
    records = [record("train", 256 * step, step) | {"samples_before": 256 * (step - 1)} for step in (2, 6, 10)]
    records.append(record("train", 256 * 14, 14) | {"samples_before": 256 * 14})
    write_trial(sweep / "trials" / TRIAL, records)
    loaded = load_sweep(sweep)
    samples = loaded.updates.loc[loaded.updates["trial_id"] == TRIAL, "samples"]
    assert samples.tolist() == pytest.approx([256, 256, 256, np.nan], nan_ok=True)


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
        ({"format": 2}, "has format 2; this version reads format 1"),
        ({"format": True}, "has format true; this version reads format 1"),
        ({"reference_arm": "P9"}, "reference_arm is 'P9', needed is one of P32-G8-sqrt, P8-G8-sqrt"),
        ({"target": {"metric": "eval/score"}}, "target.value is missing"),
        ({"target": {"metric": "eval/score", "value": "high"}}, 'target.value is "high", needed is a number'),
        ({"target": {"metric": "eval/other", "value": None}}, "has a record of eval/other; name one with --target"),
        ({"target": {"metric": "eval/score", "value": math.nan}}, "target.value is NaN, needed is a finite number"),
        ({"target": "high"}, 'target is "high", needed is an object'),
        ({"trials": None}, "trials is null, needed is a list"),
        ({"trials": []}, "trials is [], needed is at least 1 item"),
        ({"sweep": "a\nb"}, "needed is a name of printable characters"),
    ],
)
def test_an_unusable_plan_is_one_sentence(sweep: Path, changes: dict[str, Any], message: str) -> None:
    rewrite(sweep, **changes)
    with pytest.raises(InputError) as error:
        load_sweep(sweep)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("where", "changes", "message"),
    [
        ("trial", {"trial_id": "../../elsewhere"}, "needed is the plain name of a folder below trials/"),
        ("trial", {"trial_id": "P32-G8-sqrt-s1"}, "two trials are named 'P32-G8-sqrt-s1'"),
        ("trial", {"arm": None}, "trials[1].arm is null, needed is a text"),
        ("trial", {"arm": 3}, "trials[1].arm is 3, needed is a text"),
        ("trial", {"seed": "0"}, 'trials[1].seed is "0", needed is a whole number'),
        ("trial", {"config": []}, "trials[1].config is [], needed is an object"),
        ("axes", {"lr": "fast"}, 'trials[1].axes.lr is "fast", needed is a number'),
        ("axes", {"lr": 0.0}, "trials[1].axes.lr is 0.0, needed is greater than 0"),
        ("axes", {"group_size": None}, "needed is the number of responses per prompt"),
        ("axes", {"train_batch": 0}, "trials[1].axes.train_batch is 0, needed is greater than 0"),
        ("axes", {"train_batch": 10**400}, "needed is less than or equal to 9007199254740992"),
        ("axes", {"train_batch": 32}, "train_batch is 32, needed is num_prompts * group_size = 32 * 8 = 256"),
        ("axes", {"lr": 1.0}, "P32-G8-sqrt-s0 and P32-G8-sqrt-s1 are of one arm but differ in lr"),
        ("axes", {"depth": math.inf}, "trials[1].axes.depth is Infinity, needed is a finite number"),
    ],
)
def test_a_hostile_trial_of_the_plan_is_one_sentence(
    sweep: Path, where: str, changes: dict[str, Any], message: str
) -> None:
    trials = json.loads((sweep / "plan.json").read_text())["trials"]
    (trials[1] if where == "trial" else trials[1]["axes"]).update(changes)
    rewrite(sweep, trials=trials)
    with pytest.raises(InputError) as error:
        load_sweep(sweep)
    assert message in str(error.value) and len(str(error.value)) < 400


def test_what_an_import_does_not_know_may_be_left_open(sweep: Path) -> None:
    trials = json.loads((sweep / "plan.json").read_text())["trials"]
    for trial in trials:
        trial["config"] = None
        trial["axes"] |= {"lr": None, "stages": [1, 2]}
    rewrite(sweep, trials=trials, assumptions=["every prompt has 8 responses"])
    loaded = load_sweep(sweep)
    assert loaded.arms["lr"].isna().all() and loaded.trials["budget_samples"].isna().all()
    assert loaded.arms["stages"].tolist() == ["[1, 2]", "[1, 2]"]
    assert loaded.assumptions == ("every prompt has 8 responses",)


def test_of_two_trials_with_one_seed_the_finished_one_counts(sweep: Path) -> None:
    """`again` has no records: P8-G8-sqrt-s0 counts. Without its outcome neither is data, and still one is named."""
    trials = json.loads((sweep / "plan.json").read_text())["trials"]
    rewrite(sweep, trials=[trials[0] | {"trial_id": "again"}, *trials])
    loaded = load_sweep(sweep)
    assert loaded.trials.loc["again", ["status", "reason"]].tolist() == [
        "duplicate",
        "the same arm with the same seed as P8-G8-sqrt-s0",
    ]
    assert loaded.trials.loc["P8-G8-sqrt-s0", "status"] == "completed"


@pytest.mark.parametrize("outcome", ['{"status": 5}', '{"status": ["completed"]}', "[]", "{", '{"status": "done"}', ""])
def test_an_outcome_that_says_nothing_is_no_end(sweep: Path, outcome: str) -> None:
    (sweep / "trials" / TRIAL / "outcome.json").write_text(outcome)
    loaded = load_sweep(sweep)
    assert loaded.trials.loc[TRIAL, "status"] == "unreadable" and TRIAL not in loaded.finished.index
    assert "none of completed, diverged, failed, interrupted" in loaded.trials.loc[TRIAL, "reason"]


def test_lines_of_the_wrong_shape_are_skipped_and_values_of_the_wrong_type_are_missing(sweep: Path) -> None:
    good = record("eval", 512, loss=1.0)
    wrong = [
        good | {"samples_trained": value} for value in (True, "512", -1, 0.5, 10**400, None, [512], math.inf, {"n": 1})
    ]
    wrong += [good | {"kind": ["eval"]}, good | {"metrics": [1]}, good | {"seconds": "1"}, good | {"metrics": None}]
    values = ["0.5", True, None, [0.5], {"mean": 0.5}, 10**400, 1e200, math.nan, -math.inf]
    odd = [record("eval", 1024 + n) | {"metrics": {"loss": value}} for n, value in enumerate(values)]
    lines = [json.dumps(each) + "\n" for each in [good, *wrong, *odd]]
    (sweep / "trials" / TRIAL / "metrics.jsonl").write_text("".join(lines))
    loaded = load_sweep(sweep)
    assert loaded.trials.loc[TRIAL, "num_bad_lines"] == len(wrong)
    loss = loaded.evals.loc[loaded.evals["trial_id"] == TRIAL, "loss"]
    assert loss.tolist()[0] == 1.0 and loss.isna().tolist() == [False] + [True] * len(values)


def test_a_metric_cannot_take_the_place_of_a_column(sweep: Path) -> None:
    metrics = {"arm": 1.0, "seed": 7, "loss": 2.0, "\ud800": 3.0}
    write_trial(sweep / "trials" / TRIAL, [record("eval", 512) | {"metrics": metrics}])
    rows = load_sweep(sweep).evals.query("trial_id == @TRIAL")
    assert rows[["arm", "seed", "loss"]].to_numpy().tolist() == [["P32-G8-sqrt", 0, 2.0]]


def test_texts_that_no_file_can_hold_are_replaced(sweep: Path) -> None:
    trial = sweep / "trials" / TRIAL
    (trial / "outcome.json").write_text('{"status": "failed", "reason": "a \\ud800\\n b"}')
    (trial / "provenance.json").write_text('{"commit": "\\udc00", "hardware": {"\\ud800": ["\\ud800"]}}')
    loaded = load_sweep(sweep)
    assert loaded.trials.loc[TRIAL, ["reason", "commit"]].tolist() == ["a ? b", "?"]
    assert provenance_of(loaded, TRIAL)["hardware"] == {"?": ["?"]}


def test_lines_of_the_timing_pass_that_measure_nothing_are_counted(sweep: Path) -> None:
    line = json.loads((sweep / "timing.jsonl").read_text().splitlines()[-1])
    wrong = [
        line | {"arm": "P9"}, line | {"arm": None}, line | {"round": "1"}, line | {"samples": 0}, line | {"samples": -8},
        line | {"seconds": None}, line | {"seconds": {"train": "1"}}, line | {"seconds": {"train": -1.0}}, [line],
    ]  # fmt: skip
    with (sweep / "timing.jsonl").open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in wrong)
    loaded = load_sweep(sweep)
    assert (loaded.num_bad_timing_lines, len(loaded.timing)) == (len(wrong), 10)


def test_a_folder_without_a_plan_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no plan.json: name the folder of one sweep"):
        load_sweep(tmp_path)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        load_sweep(tmp_path)


def test_a_target_that_is_no_number_is_refused(sweep: Path) -> None:
    with pytest.raises(InputError, match="target nan"):
        load_sweep(sweep, target=float("nan"))
