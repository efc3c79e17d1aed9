"""Runs of TRL: what its own trainer left behind (make_trl_fixtures.py) gives counts and scores known by hand."""

import json
import math
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.__main__ import main
from analysis.errors import InputError
from analysis.importing import trl
from analysis.importing.run import ImportedRun, Options
from analysis.importing.trl_cadence import Cadence
from analysis.importing.trl_files import arguments_of, history_of

FIXTURES = Path(__file__).parent / "fixtures" / "trl"
BATCH = Options(num_prompts=8, group_size=4)


def read(path: Path, options: Options = BATCH) -> ImportedRun:
    (run,) = trl.read(path, options)
    return run


def state_of(name: str) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((FIXTURES / name / "trainer_state.json").read_text())
    return state


def write_state(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A state of rows that have `step` and what else they hold."""
    folder.mkdir(exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": rows[-1]["step"], "log_history": rows}))
    return folder / "trainer_state.json"


def spans(run: ImportedRun) -> list[tuple[int, int, int]]:
    return [(update.step, update.samples_before, update.samples_trained) for update in run.updates]


def rewards(run: ImportedRun) -> list[float]:
    return [update.scores["reward"] for update in run.updates]


def test_a_row_a_rollout_batch() -> None:
    """8 steps of 8 prompts x 4. Its own token counter agrees: 3,567 tokens less the responses' are 7 a prompt of 256."""
    run = read(FIXTURES / "plain", Options())
    assert (run.num_prompts, run.group_size, run.algorithm, run.seed, run.lr) == (8, 4, "grpo", 0, 2e-4)
    assert spans(run) == [(step, 32 * (step - 1), 32 * step) for step in range(1, 9)]
    assert rewards(run) == [7 / 32, 10 / 32, 12 / 32, 10 / 32, 13 / 32, 12 / 32, 9 / 32, 11 / 32]
    assert 3567 - sum(update.tokens or 0 for update in run.updates) == 7 * 256
    assert [(e.samples_trained, e.scores["eval_reward"]) for e in run.evals] == [(128, 12 / 64), (256, 15 / 64)]
    assert run.curves == ("eval_reward", "eval_rewards/reward/mean", "reward", "rewards/reward/mean")
    rows = [row for row in state_of("plain")["log_history"] if "step_time" in row]
    assert [update.seconds for update in run.updates] == [{"undivided": row["step_time"]} for row in rows]
    spent = [row["eval_runtime"] for row in state_of("plain")["log_history"] if "eval_runtime" in row]
    assert [update.apart_s for update in run.updates if update.apart_s] == [{"evaluate": s} for s in spent]
    assert run.updates[1].metrics["grad/actor_norm"] == pytest.approx(3.5868, abs=1e-4)


def test_samples_that_are_gone_over_twice_count_once() -> None:
    """16 optimizer steps of 16 responses are 256 visits of 128 responses: 1,772 tokens less theirs are 7 x 128."""
    run = read(FIXTURES / "reuse", Options())
    assert spans(run) == [(1, 0, 32), (2, 32, 64), (3, 64, 96), (4, 96, 128)]
    assert 1772 - sum(update.tokens or 0 for update in run.updates) == 7 * 128
    assert {update.optimizer_steps for update in run.updates} == {4}
    assert (run.axes["passes"], run.axes["mini_batch_size"]) == (2, 16)
    assert [evaluation.samples_trained for evaluation in run.evals] == [32, 64, 96, 128]
    first, second = (row["step_time"] for row in state_of("reuse")["log_history"][:2])
    assert run.updates[0].seconds == pytest.approx({"undivided": 2 * first + 2 * second})


def test_a_row_that_is_a_mean_of_several_rollout_batches_stands_at_their_mean() -> None:
    """The same run as plain, logged every 4 steps: steps 1-4 sample at N = 0, 32, 64, 96, their mean is 48."""
    run, plain = read(FIXTURES / "sparse", Options()), read(FIXTURES / "plain", Options())
    assert spans(run) == [(2, 48, 80), (6, 176, 208), (10, 304, 336), (14, 432, 464)]
    assert rewards(run)[:2] == pytest.approx([sum(rewards(plain)[:4]) / 4, sum(rewards(plain)[4:]) / 4])
    assert [evaluation.samples_trained for evaluation in run.evals] == [128, 256, 384, 512]
    assert any("means over 4 rollout batches" in text for text in run.assumptions)


@pytest.mark.parametrize("name", ["plain", "reuse", "sparse"])
def test_the_console_tells_the_same_as_the_state(name: str, tmp_path: Path) -> None:
    """With and without progress bars; four digits instead of all. Passes and steps come from its speeds and gaps."""
    shutil.copy(FIXTURES / f"{name}.log", tmp_path / "console.log")
    console, state = read(tmp_path / "console.log"), read(FIXTURES / name, Options())
    assert spans(console) == spans(state)
    assert rewards(console) == pytest.approx(rewards(state), abs=5e-5)
    assert [e.samples_trained for e in console.evals] == [e.samples_trained for e in state.evals]
    assert console.axes["passes"] == state.axes["passes"]
    for mine, other in zip(console.updates, state.updates, strict=True):
        assert mine.seconds == pytest.approx(other.seconds, rel=1e-3)
        assert mine.apart_s == pytest.approx(other.apart_s, rel=1e-3)


def test_a_console_without_its_end_counts_by_its_progress_bar(tmp_path: Path) -> None:
    text = (FIXTURES / "reuse.log").read_text()
    log = tmp_path / "console.log"
    log.write_text(text[: text.index("{'train_runtime'")])
    assert [step for step, _ in history_of(log).rows] == [2, 4, 4, 6, 8, 8, 10, 12, 12, 14, 16, 16]
    log.write_text(
        "".join(line for line in text.splitlines(keepends=True) if "train_runtime" not in line and " [" not in line)
    )
    with pytest.raises(InputError, match="rows without their steps.*import the trainer_state.json"):
        history_of(log)


def test_console_rows_of_older_versions_are_numbers(tmp_path: Path) -> None:
    """Numbers instead of texts, with nan, numpy's and torch's ways to print them, a rank's prefix and colours."""
    log = tmp_path / "console.log"
    log.write_text(
        "\x1b[36m(main pid=7)\x1b[0m {'loss': nan, 'reward': np.float64(0.25), 'kl': tensor(0.5), 'epoch': 0.1}\n"
        "{'loss': 0.0, 'reward': 0.5, 'step_time': 2.0, 'epoch': 0.2}\n"
        "{'train_runtime': 4.0, 'train_samples_per_second': 16.0, 'train_steps_per_second': 0.5, 'epoch': 0.2}\n"
    )
    run = read(log)
    assert spans(run) == [(1, 0, 32), (2, 32, 64)] and rewards(run) == [0.25, 0.5]
    assert run.updates[0].metrics["policy/ref_kl"] == 0.5 and "loss/actor" not in run.updates[0].metrics
    assert [update.seconds for update in run.updates] == [{}, {"undivided": 2.0}]


def test_a_resumed_run_counts_its_last_attempt(tmp_path: Path) -> None:
    """Steps 1 to 8, then again from 5 on, as a console shows whose run was stopped and started."""
    text = (FIXTURES / "plain.log").read_text()
    log = tmp_path / "console.log"
    rows = [line for line in text.splitlines() if line.startswith("{'loss'")]
    again = [re.sub("'reward': '[^']*'", "'reward': '0.75'", line) for line in rows[4:6]]
    end = "{'train_runtime': '3', 'train_samples_per_second': '64', 'train_steps_per_second': '2', 'epoch': '0.1875'}"
    log.write_text("\n".join([*rows, *again, end]))
    run = read(log)
    assert [update.step for update in run.updates] == [1, 2, 3, 4, 5, 6]
    assert rewards(run)[3:] == pytest.approx([10 / 32, 0.75, 0.75], abs=1e-4)
    assert "4 rows were made again by a later attempt; the later ones count." in run.assumptions


def test_a_metric_without_a_value_is_missing(tmp_path: Path) -> None:
    rows = [{"step": step, "epoch": 0.1, "loss": 0.0, "reward": 0.25} for step in (1, 2, 3)]
    rows[1] |= {"reward": math.nan, "num_tokens": 5000.0}
    run = read(write_state(tmp_path, rows))
    assert [update.scores for update in run.updates] == [{"reward": 0.25}, {}, {"reward": 0.25}]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "empty log_history"),
        ([{"step": 4, "eval_loss": 0.0, "eval_reward": 0.5}], "no rows of TRL with a reward; 1 rows without one"),
        ([{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.4}], "no rows of TRL with a reward"),
    ],
)
def test_a_history_without_training_is_refused(rows: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    path = write_state(tmp_path, rows or [{"step": 0}])
    if not rows:
        path.write_text('{"global_step": 0, "log_history": []}')
    with pytest.raises(InputError, match=message):
        read(path)


def test_a_batch_in_the_wrong_unit_is_refused(tmp_path: Path) -> None:
    """A state alone knows neither P nor G; closing speeds say 32 responses a step, the token counter bounds them too."""
    shutil.copy(FIXTURES / "plain" / "trainer_state.json", tmp_path)
    state = tmp_path / "trainer_state.json"
    with pytest.raises(
        InputError, match=r"does not say num_prompts and group_size.*an optimizer step takes 32 responses"
    ):
        read(state, Options())
    with pytest.raises(InputError, match=r"32 prompts x 4 responses are 128, but 1 optimizer steps of 32 responses"):
        read(state, Options(num_prompts=32, group_size=4))
    assert (read(state, Options(group_size=4)).num_prompts, read(state, Options(group_size=2)).num_prompts) == (8, 16)
    without_speeds = [row for row in state_of("plain")["log_history"] if "train_runtime" not in row]
    with pytest.raises(InputError, match=r"would be 7,100 response tokens, but the log counts 3,567 tokens"):
        read(write_state(tmp_path, without_speeds), Options(num_prompts=32, group_size=4))
    with pytest.raises(InputError, match=r"--group-size 8.*itself says group_size = 4"):
        read(FIXTURES / "plain", Options(group_size=8))


def test_the_trainers_arguments_are_read_without_running_them(tmp_path: Path) -> None:
    class Mine:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    with zipfile.ZipFile(tmp_path / "training_args.bin", "w") as archive:
        archive.writestr("training_args/data.pkl", pickle.dumps(Mine(), protocol=2))
    assert arguments_of(tmp_path) == {} and not (tmp_path / "ran").exists()
    found = arguments_of(FIXTURES / "reuse")
    names = ("num_generations", "generation_batch_size", "steps_per_generation", "num_iterations", "loss_type")
    assert [found[name] for name in names] == [4, 32, 4, 2, "dapo"]


def arguments(slices: int, accumulated: int, passes: int = 1) -> dict[str, int]:
    return {
        "num_generations": 4,
        "generation_batch_size": 8 * slices,
        "steps_per_generation": slices,
        "gradient_accumulation_steps": accumulated,
        "num_iterations": passes,
    }


@pytest.mark.parametrize(
    ("slices", "accumulated", "passes", "cadence"),
    [
        (2, 2, 1, Cadence(4, 4, 1, 1)),
        (4, 2, 1, Cadence(8, 4, 2, 1)),
        (4, 2, 2, Cadence(8, 4, 4, 2)),
        (1, 4, 1, Cadence(8, 4, 1, 1)),  # four samplings of one policy: 32 responses an optimizer step
        (2, 4, 2, Cadence(4, 4, 1, 2)),  # both passes in one optimizer step
    ],
)
def test_arguments_give_the_cadence(slices: int, accumulated: int, passes: int, cadence: Cadence) -> None:
    rows = [(step, {"reward": 0.5, "loss": 0.0}) for step in range(1, 9)]
    run = trl.run_of(trl.History("run", Path("run"), rows, arguments(slices, accumulated, passes)), Options())
    assert (run.num_prompts, run.group_size, run.axes["passes"]) == (cadence.num_prompts, 4, passes)
    assert run.updates[-1].samples_trained == cadence.samples_trained(8) == 8 // cadence.steps * cadence.train_batch


def test_rollout_batches_that_begin_inside_an_optimizer_step_are_refused() -> None:
    history = trl.History("run", Path("run"), [(1, {"reward": 0.5})], arguments(slices=3, accumulated=2))
    with pytest.raises(InputError, match="rollout batches begin inside optimizer steps"):
        trl.run_of(history, Options())


def test_rows_at_a_gap_are_left_out(tmp_path: Path) -> None:
    """Rows of two steps at 2, 4, then 10, 12 as where a console was cut: 5-8 is unknown, 9-12 are two batches."""
    rows = [{"step": step, "loss": 0.0, "reward": 0.1 * step, "step_time": 1.0} for step in (2, 4, 10, 12)]
    assert spans(read(write_state(tmp_path, rows))) == [(1, 16, 48), (3, 80, 112), (9, 272, 304), (11, 336, 368)]


def test_a_folder_gives_its_furthest_checkpoint(tmp_path: Path) -> None:
    rows = state_of("plain")["log_history"]
    for step in (4, 8):
        write_state(tmp_path / f"checkpoint-{step}", [row for row in rows if row["step"] <= step])
    shutil.copy(FIXTURES / "plain" / "training_args.bin", tmp_path / "checkpoint-4")
    assert trl.looks_like(tmp_path)
    assert spans(read(tmp_path, Options()))[-1] == (8, 224, 256)


def test_from_an_output_folder_to_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs of other lengths; q of plain is 256 responses over its step times, to the digits that are written."""
    out = tmp_path / "mine"
    assert (
        main(
            [
                "import",
                str(FIXTURES / "plain"),
                str(FIXTURES / "sparse"),
                "--out",
                str(out),
                "--target",
                "0.3",
                "--score",
                "reward",
            ]
        )
        == 0
    )
    assert "2 runs imported" in capsys.readouterr().out
    sweep = analysis.load_sweep(out)
    assert sweep.metric == "reward" and sweep.arms["train_batch"].tolist() == [32]
    plain = sweep.updates[sweep.updates["trial_id"] == "plain"]
    assert plain["samples"].tolist() == [32] * 8 and plain["optimizer_steps"].tolist() == list(range(1, 9))
    times = [row["step_time"] for row in state_of("plain")["log_history"] if "step_time" in row]
    assert plain["undivided_s"].sum() == pytest.approx(sum(times))
    scores = sweep.evals[sweep.evals["trial_id"] == "plain"].dropna(subset=["reward"])
    assert scores["samples_trained"].tolist() == list(range(0, 256, 32))
    sparse = sweep.updates[sweep.updates["trial_id"] == "sparse"]
    assert sparse["samples"].tolist() == [32] * 4 and sparse["samples_before"].tolist() == [48, 176, 304, 432]
