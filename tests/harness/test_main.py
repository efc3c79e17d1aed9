"""The commands as a person uses them: what they print, what they write, how they fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.__main__ import main
from harness.config import SweepConfig
from harness.costs import cost_core_s, measured_rates
from harness.errors import EnvironmentProblem
from harness.plan import Plan, PlannedTrial, make_plan
from harness.run_dir import exclusive

SWEEP: dict[str, Any] = {
    "sweep": "demo",
    "question": "Does it work?",
    "task": {"name": "reverse_digits", "num_digits": 6},
    "optimizer": {"lr": 3.0e-4},
    "budget_samples": 2048,
    "seeds": 2,
    "reference": {"batch.num_prompts": 8},
    "arms": [{"batch.num_prompts": [8, 32, 256]}],
}


@pytest.fixture
def sweep_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("harness.__main__.REFERENCE_REPORTS", tmp_path / "reference")
    path = tmp_path / "demo.yaml"
    path.write_text(yaml.safe_dump(SWEEP))
    return path


def run(*args: object) -> int:
    return main([str(arg) for arg in args])


def refusal(capsys: pytest.CaptureFixture[str], *args: object, code: int = 2) -> str:
    """The one line on stderr of a command that ends with `code`."""
    assert run(*args) == code
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


def start_trial(results: Path, index: int) -> str:
    """Give one trial of the plan on disk a record; returns its id."""
    trial_id: str = json.loads((results / "demo" / "plan.json").read_text())["trials"][index]["trial_id"]
    folder = results / "demo" / "trials" / trial_id
    folder.mkdir(parents=True)
    records = [
        {"kind": "eval", "samples_trained": 0, "metrics": {"eval/score": 0.25}},
        {"kind": "eval", "samples_trained": 1024, "metrics": {"eval/score": 0.5}},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return trial_id


def test_plan_prints_the_table_and_writes_the_plan(
    sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", sweep_file, "--results", tmp_path / "r", "--set", "batch.micro_batch_size_per_gpu=48") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    # 2048 samples in batches of 256: 8 steps; the largest divisor of 256 up to 48 is 32, so 8 passes a step
    assert ["P32-G8-sqrt", "32", "8", "256", "4", "0.0006", "256", "8", "64", "8", "2,048", "unknown"] in lines
    assert ["P8-G8-sqrt", "*", "8", "8", "64", "1", "0.0003", "64", "32", "64", "2", "2,048", "unknown"] in lines
    text = "\n".join(" ".join(line) for line in lines)
    assert "3 arms, 6 trials; cost unknown" in text
    assert "target eval/score >= 0.7" in text
    assert "P32-G8-sqrt: micro-batch 32, the largest divisor of 256 up to 48" in text
    assert "evaluated once a rollout batch, which is above evaluation.every_samples: P256-G8-sqrt" in text
    plan = Plan.from_json((tmp_path / "r" / "demo" / "plan.json").read_text())
    assert len(plan.trials) == 6 and plan.reference_arm == "P8-G8-sqrt"


def test_the_plan_counts_mini_batches_and_passes(
    sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--set", "batch.mini_batch_size=32", "--set", "batch.micro_batch_size_per_gpu=16"]
    settings += ["--set", "algorithm={name: rloo, passes: 3}"]
    assert run("plan", sweep_file, "--results", tmp_path, *settings) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    # 8 rollout batches of 256: 8 steps of 32 and 16 passes of 16 in each, three times over.
    assert ["P32-G8-sqrt", "32", "8", "256", "4", "0.0006", "32", "192", "384", "2", "2,048", "unknown"] in lines


def test_plan_prints_what_the_rules_changed(
    sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = ["lr_rule=adam_sde_power", "clip_norm=1.0", "clip_norm_rule=inverse_sqrt", "warmup_samples=640"]
    settings = [word for rule in rules for word in ("--set", f"optimizer.{rule}")]
    assert run("plan", sweep_file, "--results", tmp_path / "r", *settings) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    # kappa 4: .9^4 = .6561, .999^4 = .996006, 1e-8/2, 1/2; warm-up stays, so it has no column
    assert ["after", "the", "rules", "betas", "eps", "clip_norm"] in lines
    assert ["P8-G8-adam_sde_power", "*", "0.9,", "0.999", "1e-08", "1"] in lines
    assert ["P32-G8-adam_sde_power", "0.6561,", "0.996006", "5e-09", "0.5"] in lines
    assert run("plan", sweep_file, "--results", tmp_path / "s") == 0
    assert "after the rules" not in capsys.readouterr().out


def test_the_plan_on_disk_is_whole_even_if_only_a_part_is_chosen(
    sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", sweep_file, "--results", tmp_path, "--only", "P32-G8-sqrt", "--seeds", "1") == 0
    out = capsys.readouterr().out
    assert "1 arms, 1 trials" in out and "P256-G8-sqrt" not in out
    assert len(Plan.from_json((tmp_path / "demo" / "plan.json").read_text()).trials) == 6


def test_batch_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("batch", "--num-prompts", 2, "--group-size", 5, "--ranks", 2, "--micro", 1, "--mini", 5) == 0
    assert capsys.readouterr().out.splitlines() == [
        "rollout batch    2 prompts x 5 responses = 10 responses",
        "rank             10 / 2 ranks = 5 responses a rank",
        "micro-batch      1 response a backward pass and rank (as asked)",
        "backward passes  5 / 1 = 5 a rank and rollout batch",
        "mini-batch       5 responses an optimizer step and rank (as asked); 5 x 2 ranks = 10 an optimizer step",
        "accumulation     5 / 1 = 5 backward passes an optimizer step",
        "optimizer steps  5 / 5 = 1 a rank and rollout batch",
    ]
    cadence = "one_step_per_micro_batch"
    assert run("batch", "--num-prompts", 2, "--group-size", 5, "--ranks", 2, "--micro", 1, "--cadence", cadence) == 0
    out = capsys.readouterr().out
    assert "(unset: the micro-batch); 1 x 2 ranks = 2 an optimizer step" in out
    assert "accumulation     1 / 1 = 1 backward pass an optimizer step" in out
    assert "optimizer steps  5 / 1 = 5 a rank and rollout batch" in out
    assert run("batch", "--num-prompts", 15, "--group-size", 8, "--micro", 64) == 0
    out = capsys.readouterr().out
    assert "60 responses a backward pass and rank (the largest divisor of 120 up to 64)" in out
    assert "120 responses an optimizer step and rank (unset: the rank's whole batch)" in out


def test_batch_that_does_not_divide(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("batch", "--num-prompts", 2, "--group-size", 5, "--ranks", 2, "--micro", 1, "--mini", 3)
    assert refusal(capsys, *args) == (
        "batch.mini_batch_size: 3 does not divide the rank's 5 responses (5 % 3 = 2); the nearest that do: 1 or 5"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--set", "batch.goup_size=4"], "batch.goup_size: unknown; did you mean batch.group_size?"),
        (["--set", "model.name=tiny-lama"], "no embedded model; did you mean tiny-llama?"),
        (
            ["--set", "budget_samples=100"],
            "arm P32-G8-sqrt: budget_samples: 100 is below one rollout batch of 256 responses",
        ),
        (["--only", "P33-G8-sqrt"], "--only P33-G8-sqrt: no such arm; did you mean P32-G8-sqrt?"),
        (["--seeds", "0,x"], "argument --seeds: '0,x'; needs whole numbers separated by commas, such as 0,2,3"),
        (["--sed", "x"], "unrecognized arguments: --sed x"),
    ],
)
def test_wrong_input_ends_with_two_and_writes_nothing(
    sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    for command in ("plan", "sweep"):
        assert message in refusal(capsys, command, sweep_file, "--results", tmp_path / "r", *args)
    assert not (tmp_path / "r").exists()


def test_wrong_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid choice: 'swep'" in refusal(capsys, "swep")
    assert "required: COMMAND" in refusal(capsys)


def test_results_of_another_plan_are_refused(
    sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", sweep_file, "--results", tmp_path) == 0
    assert run("plan", sweep_file, "--results", tmp_path, "--set", "optimizer.lr=1.0e-3") == 0  # nothing has begun
    assert run("plan", sweep_file, "--results", tmp_path) == 0
    start_trial(tmp_path, 0)
    before = (tmp_path / "demo" / "plan.json").read_text()
    message = refusal(capsys, "plan", sweep_file, "--results", tmp_path, "--set", "optimizer.lr=1.0e-3")
    assert message.startswith(f"{tmp_path / 'demo'} was made by another plan: 1 of its trials")
    assert "differs in optimizer.lr 0.0003 -> 0.001" in message and "--set sweep=NAME" in message
    assert (tmp_path / "demo" / "plan.json").read_text() == before
    # more seeds keep the trial that has records
    assert run("plan", sweep_file, "--results", tmp_path, "--set", "seeds=3") == 0
    assert len(json.loads((tmp_path / "demo" / "plan.json").read_text())["trials"]) == 9


def test_an_unreadable_plan_is_refused(sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "demo").mkdir()
    plan = tmp_path / "demo" / "plan.json"
    plan.write_text('{"format": 1, "swe')
    message = refusal(capsys, "sweep", sweep_file, "--results", tmp_path)
    assert message.startswith(f"{plan}: not valid JSON (") and "move it away to have it written anew" in message
    plan.write_bytes(b"\xff\xfe")
    assert refusal(capsys, "sweep", sweep_file, "--results", tmp_path).startswith(f"{plan}: not text; move it away")


def test_a_folder_that_cannot_be_written_ends_with_three(
    sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    message = refusal(capsys, "plan", sweep_file, "--results", tmp_path / "file", code=3)
    assert message == f"{tmp_path / 'file' / 'demo'}: a file is in the way of this folder"
    if not Path("/dev/full").exists() or os.name != "posix":
        pytest.skip("no read-only place to try")
    message = refusal(capsys, "plan", sweep_file, "--results", "/proc/results", code=3)
    assert message.startswith("/proc/results/demo: plan.json cannot be written (")


def test_sweep_hands_over_the_chosen_trials_and_returns_its_exit_code(
    sweep_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[Plan, list[PlannedTrial], Path]] = []
    fake = types.ModuleType("harness.sweep")

    def run_sweep(plan: Plan, selected: list[PlannedTrial], results_root: Path) -> int:
        seen.append((plan, selected, results_root))
        return 1

    fake.run_sweep = run_sweep  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "harness.sweep", fake)
    assert run("sweep", sweep_file, "--results", tmp_path, "--only", "P8-G8-sqrt") == 1
    plan, selected, root = seen[0]
    assert (len(plan.trials), [(t.arm, t.seed) for t in selected]) == (6, [("P8-G8-sqrt", 0), ("P8-G8-sqrt", 1)])
    assert root == tmp_path

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    fake.run_sweep = interrupted  # type: ignore[attr-defined]
    assert refusal(capsys, "sweep", sweep_file, "--results", tmp_path, code=130).startswith(
        "interrupted; the same command"
    )

    def no_disk(*_: object) -> int:
        raise EnvironmentProblem("results/demo: the disk is full")

    fake.run_sweep = no_disk  # type: ignore[attr-defined]
    assert refusal(capsys, "sweep", sweep_file, "--results", tmp_path, code=3) == "results/demo: the disk is full"


def test_a_missing_package_is_named(sweep_file: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; from harness.__main__ import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "sweep", str(sweep_file), "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    assert done.stderr.startswith("error: the package ray ") and "make setup" in done.stderr


def test_status(sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "status", sweep_file, "--results", tmp_path)
    assert (
        message == f"{tmp_path / 'demo'}: no plan.json; python -m harness plan or sweep with the sweep file writes it"
    )
    assert run("plan", sweep_file, "--results", tmp_path) == 0
    begun, done = start_trial(tmp_path, 0), start_trial(tmp_path, 1)
    outcome = {
        "status": "diverged", "reason": "loss is NaN", "samples_trained": 1024, "samples_generated": 1024,
        "optimizer_steps": 4, "wall_s": 1.0, "attempts": 1,
    }  # fmt: skip
    (tmp_path / "demo" / "trials" / done / "outcome.json").write_text(json.dumps(outcome))
    capsys.readouterr()
    assert run("status", sweep_file, "--results", tmp_path) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    goes_on = ["goes", "on", "from", "its", "last", "checkpoint"]
    assert [begun, "waiting", "1,024", "2,048", "0.500", "-", "-", *goes_on] in rows
    assert [done, "diverged", "1,024", "2,048", "0.500", "-", "-", "loss", "is", "NaN"] in rows
    assert "1 diverged, 5 waiting" in " ".join(rows[0])


def test_cost_comes_from_the_nearest_measured_batch(tmp_path: Path) -> None:
    plan = make_plan(SweepConfig.model_validate(SWEEP | {"execution": {"threads": 2}}))
    by_arm = {trial.arm: trial.config for trial in plan.trials}
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "plan.json").write_text(plan.to_json())
    rows = [
        {"arm": "P8-G8-sqrt", "samples": 64, "seconds": {"generate": 0.1, "train": 0.3}, "round": 0},
        {"arm": "P8-G8-sqrt", "samples": 64, "seconds": {"generate": 0.2, "train": 0.4}, "round": 1},
        {"arm": "P256-G8-sqrt", "samples": 2048, "seconds": {"generate": 1.0, "train": 1.0}, "round": 0},
    ]
    (folder / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"arm": "P8')
    rates, source = measured_rates(plan, folder, tmp_path / "reference")
    # 1.0 s for 128 samples on 2 threads = 2/128 core-seconds a sample; 2.0 s for 2048 = 4/2048
    assert rates == pytest.approx({64: 2 / 128, 2048: 4 / 2048})
    assert source == str(folder / "timing.jsonl")
    # log2: 64 -> 6, 256 -> 8, 2048 -> 11: 256 is nearer to 64
    assert cost_core_s(by_arm["P32-G8-sqrt"], rates) == pytest.approx(2048 * 2 / 128)
    assert cost_core_s(by_arm["P256-G8-sqrt"], rates) == pytest.approx(4.0)
    assert cost_core_s(by_arm["P8-G8-sqrt"], {}) is None


def test_cost_from_a_committed_report_of_the_same_model_and_task_only(tmp_path: Path) -> None:
    plan = make_plan(SweepConfig.model_validate(SWEEP))
    folder = tmp_path / "reference" / "earlier"
    folder.mkdir(parents=True)
    report = {
        "arms": [{"train_batch": 64, "throughput": {"samples_per_s": 500.0}}, {"train_batch": 256, "throughput": None}]
    }
    (folder / "report.json").write_text(json.dumps(report))
    assert measured_rates(plan, tmp_path / "demo", tmp_path / "reference") == ({}, "")  # of which task?
    (folder / "plan.json").write_text(plan.to_json())
    assert measured_rates(plan, tmp_path / "demo", tmp_path / "reference") == (
        {64: 1 / 500},
        str(folder / "report.json"),
    )
    other = make_plan(SweepConfig.model_validate(SWEEP | {"task": {"name": "digit_sums"}}))
    assert measured_rates(other, tmp_path / "demo", tmp_path / "reference") == ({}, "")


def test_a_plan_does_not_take_the_place_of_one_that_is_running(
    sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before its first record nothing but the lock of its folder tells that a sweep has started."""
    (tmp_path / "demo").mkdir()
    with exclusive(tmp_path / "demo" / "lock", 0.0, "busy"):
        assert run("plan", sweep_file, "--results", tmp_path) == 3
    assert "a sweep is running in this folder by another plan" in capsys.readouterr().err
    assert run("plan", sweep_file, "--results", tmp_path) == 0
