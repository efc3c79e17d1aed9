"""Event files as PyTorch's SummaryWriter makes them, under the names of OpenRLHF, TRL, verl and of nobody."""

import importlib.util
import itertools
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from torch.utils.tensorboard import SummaryWriter

import analysis
from analysis.__main__ import main
from analysis.errors import InputError
from analysis.importing import tensorboard, trl
from analysis.importing.run import ImportedRun, Options
from tests.analysis.importing.openrlhf_rows import rows

FIXTURES = Path(__file__).parent / "fixtures" / "trl"
GROUP = Options(group_size=4)


def write(folder: Path, found: Iterable[tuple[int, str, dict[str, float]]]) -> Path:
    """What OpenRLHF's logger writes of these rows: train/NAME and eval/NAME at the global step."""
    with SummaryWriter(str(folder), filename_suffix=f".{len(list(folder.glob('*')))}") as writer:
        for step, kind, metrics in found:
            for name, value in metrics.items():
                writer.add_scalar(f"{kind}/{name}", value, step)
    return folder


def scalars(folder: Path, found: dict[int, dict[str, float]]) -> Path:
    with SummaryWriter(str(folder)) as writer:
        for step, metrics in found.items():
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)
    return folder


def read(path: Path, options: Options = GROUP) -> ImportedRun:
    (run,) = tensorboard.read(path, options)
    return run


def test_a_run_of_openrlhf(tmp_path: Path) -> None:
    """Rows count 32 responses, so G = 4 says 8 prompts. 0.7 was logged in 32 bits and comes back as 0.7."""
    run = read(write(tmp_path / "mine", rows(1, 7)))
    assert (run.name, run.system, run.num_prompts, run.group_size, run.lr) == ("mine", "openrlhf", 8, 4, 1e-6)
    assert [(u.step, u.samples_before, u.samples_trained) for u in run.updates] == [
        (step, 32 * (step - 1), 32 * step) for step in range(1, 8)
    ]
    assert [u.scores["rollout/reward_mean"] for u in run.updates] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert run.updates[0].seconds == {"generate": 4.5, "reward": 1.0, "train": 2.0, "sync": 0.5}
    assert run.updates[0].metrics == {
        "reward/mean": 0.1,
        "response/length_mean": 50.0,
        "response/truncated_frac": 0.125,
        "policy/clip_frac": 0.02,
        "policy/ref_kl": 0.001,
        "loss/actor": 0.01,
    }
    assert run.updates[0].tokens == 1600
    assert [(e.samples_trained, e.scores) for e in run.evals] == [
        (64, {"eval/eval_gsm8k_pass1": 0.25}),
        (128, {"eval/eval_gsm8k_pass1": 0.45}),
        (192, {"eval/eval_gsm8k_pass1": 0.65}),
    ]
    assert run.curves == ("eval/eval_gsm8k_pass1", "rollout/reward_mean", "reward")


def test_a_resumed_run_has_a_file_more_and_counts_its_last_attempt(tmp_path: Path) -> None:
    """Steps 1 to 6, resumed from 3, killed after 4: the evaluations at 4 and 6 were of weights that are gone."""
    write(tmp_path, rows(1, 6))
    run = read(write(tmp_path, itertools.islice(rows(4, 4, bonus=0.01), 1)))
    assert [u.scores["rollout/reward_mean"] for u in run.updates] == [0.1, 0.2, 0.3, 0.41]
    assert [e.samples_trained for e in run.evals] == [64]
    assert "3 steps were made again by a later attempt; the later ones count." in run.assumptions


def test_a_file_beside_it_with_other_metrics_is_no_attempt(tmp_path: Path) -> None:
    write(tmp_path, (row for row in rows(1, 4) if row[1] == "train"))
    run = read(write(tmp_path, (row for row in rows(1, 4) if row[1] == "eval")))
    assert len(run.updates) == 4 and [e.samples_trained for e in run.evals] == [64, 128]


def test_phases_that_overlap_leave_the_step_whole(tmp_path: Path) -> None:
    """Generation of 4.5 s runs beside the rest: an update comes every 5 s, not 8."""
    run = read(
        write(tmp_path, ((s, k, m | ({"timing/step_total": 5.0} if k == "train" else {})) for s, k, m in rows(1, 3)))
    )
    assert [u.seconds for u in run.updates] == [{"undivided": 5.0}] * 3
    assert any(text.startswith("Phases overlap") for text in run.assumptions)


def test_a_run_without_times_has_no_throughput(tmp_path: Path) -> None:
    slim = ((s, k, {n: x for n, x in m.items() if not n.startswith("timing/")}) for s, k, m in rows(1, 3))
    run = read(write(tmp_path, slim))
    assert [u.seconds for u in run.updates] == [{}] * 3
    assert "No row has the seconds of its phases: q is unknown." in run.assumptions


def test_a_batch_that_the_rows_do_not_count_is_refused(tmp_path: Path) -> None:
    write(tmp_path, rows(1, 2))
    with pytest.raises(InputError, match="16 prompts x 4 responses are 64, but its rows count 32 responses each"):
        read(tmp_path, Options(num_prompts=16, group_size=4))
    with pytest.raises(
        InputError, match=r"does not say num_prompts and group_size.*\(its rows count 32 responses each\)"
    ):
        read(tmp_path, Options())


def test_trl_leaves_its_arguments_in_the_event_file() -> None:
    """The run whose trainer_state.json is beside it: the same but for 32 bits."""
    events, state = read(FIXTURES / "events", Options()), trl.read(FIXTURES / "plain", Options())[0]
    same = ("num_prompts", "group_size", "algorithm", "seed", "lr", "curves", "axes", "system")
    assert [getattr(events, name) for name in same] == [getattr(state, name) for name in same]
    for mine, other in zip(events.updates, state.updates, strict=True):
        assert flat(asdict(mine)) == pytest.approx(flat(asdict(other)), rel=1e-6)
    assert [e.scores for e in events.evals] == [e.scores for e in state.evals]


def flat(update: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in update.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        found |= {f"{name}/{key}": number for key, number in inner if number is not None}
    return found


def test_a_run_of_verl(tmp_path: Path) -> None:
    """64 prompts x 8: 512 responses of 100 + 156 tokens are the 131,072 tokens that a row counts."""
    row = {"perf/total_num_tokens": 131072.0, "prompt_length/mean": 100.0, "response_length/mean": 156.0}
    found = {
        step: row | {"critic/score/mean": step / 10, "actor/pg_loss": 0.1, "timing_s/gen": 3.0, "timing_s/step": 8.0}
        for step in (1, 2, 3)
    }
    run = read(scalars(tmp_path, found), Options(group_size=8))
    assert (run.system, run.num_prompts, run.updates[-1].samples_trained) == ("verl", 64, 1536)
    assert run.updates[0].seconds == pytest.approx({"generate": 3.0, "undivided": 5.0})


def test_names_of_no_system_need_a_map(tmp_path: Path) -> None:
    write_me = {step: {"charts/return": step / 4, "time/iteration": 2.0} for step in (1, 2, 3)}
    scalars(tmp_path, write_me)
    batch = {"num_prompts": 8, "group_size": 4}
    with pytest.raises(InputError, match="neither score nor train_score: map one with --columns score=NAME"):
        read(tmp_path, Options(**batch))
    columns = {"train_score": "charts/return", "seconds": "time/iteration"}
    run = read(tmp_path, Options(**batch, columns=columns))
    assert [(u.samples_before, u.scores, u.seconds) for u in run.updates] == [
        (0, {"charts/return": 0.25}, {"undivided": 2.0}),
        (32, {"charts/return": 0.5}, {"undivided": 2.0}),
        (64, {"charts/return": 0.75}, {"undivided": 2.0}),
    ]


def test_what_is_not_finite_is_missing_and_nothing_at_all_is_refused(tmp_path: Path) -> None:
    scores = {1: 0.1, 2: math.nan, 3: math.inf, 4: 0.4}
    run = read(
        scalars(
            tmp_path / "nan",
            {s: {"train/policy_loss": 0.1, "train/return": 0.5, "train/reward": x} for s, x in scores.items()},
        ),
        Options(8, 4),
    )
    assert [(u.step, u.scores) for u in run.updates] == [(1, {"reward": 0.1}), (4, {"reward": 0.4})]
    with SummaryWriter(str(tmp_path / "text")) as writer:
        writer.add_text("note", "no number")
    with pytest.raises(InputError, match="event files without a single scalar"):
        read(tmp_path / "text")


def test_a_damaged_file_is_read_up_to_the_damage(tmp_path: Path) -> None:
    write(tmp_path, rows(1, 8))
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    assert 3 <= len(read(tmp_path).updates) <= 5


def test_without_tensorboard_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "run", rows(1, 2))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["import", str(tmp_path / "run"), "--out", str(tmp_path / "mine")]) == 3
    assert "is not installed: pip install 'tensorboard==2.21.0'" in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()


def test_from_folders_of_event_files_to_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs below one folder, one logged every second step: both make 32 responses in 8 s, so q = 4."""
    write(tmp_path / "runs" / "seed0", rows(1, 8))
    write(tmp_path / "runs" / "seed1", (row for row in rows(1, 8, bonus=0.003) if row[0] % 2 == 0))
    out = tmp_path / "mine"
    assert (
        main(
            ["import", str(tmp_path / "runs"), "--out", str(out), "--group-size", "4", "--score", "rollout/reward_mean"]
        )
        == 0
    )
    assert "2 runs imported" in capsys.readouterr().out
    sweep = analysis.load_sweep(out)
    assert sweep.trials["seed"].tolist() == [0, 1]
    assert sweep.arms.loc["P8-G4", "train_batch"] == 32
    updates = sweep.updates.groupby("seed")[["samples", "generate_s", "reward_s", "train_s", "sync_s"]].sum()
    assert updates["samples"].tolist() == [8 * 32, 4 * 32]
    assert (updates["samples"] / updates.drop(columns="samples").sum(axis=1)).tolist() == [4.0, 4.0]
    curve = sweep.evals[sweep.evals["seed"] == 0].dropna(subset=["rollout/reward_mean"])
    assert curve["samples_trained"].tolist() == list(range(0, 256, 32))
    assert curve["rollout/reward_mean"].tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
