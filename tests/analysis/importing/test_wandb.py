"""Runs of W&B that the real client writes: offline folders, and online against a server on the loopback."""

import importlib
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import wandb

import analysis
from analysis.__main__ import main
from analysis.errors import InputError
from analysis.importing.run import ImportedRun, Options
from tests.analysis.importing.openrlhf_rows import rows
from tests.harness.wandb_server import WandbServer, wandb_server

reader = importlib.import_module("analysis.importing.wandb")
FIXTURES = Path(__file__).parent / "fixtures" / "trl"
OPENRLHF = {
    "rollout_batch_size": 8,
    "n_samples_per_prompt": 4,
    "train_batch_size": 16,
    "max_epochs": 2,
    "actor_learning_rate": 1e-6,
    "advantage_estimator": "group_norm",
    "pretrain": "models/small",
    "seed": 3,
}
Row = tuple[int, str, Mapping[str, float]]


@pytest.fixture(autouse=True)
def own_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A client that has read nobody's settings."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "client"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield
    wandb.teardown()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with wandb_server() as found:
        monkeypatch.setenv("WANDB_BASE_URL", found.url)
        monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 3)
        yield found


def start(folder: Path, config: Mapping[str, Any], mode: Any = "offline", **names: Any) -> Any:
    """A run whose client keeps to itself; its settings are its own, for the client writes into them."""
    folder.mkdir(exist_ok=True)
    quiet = {"console": "off", "silent": True, "disable_git": True, "save_code": False, "x_disable_stats": True}
    settings = wandb.Settings(**quiet)
    return wandb.init(
        dir=str(folder), mode=mode, project="p", config=dict(config), settings=settings, reinit="create_new", **names
    )


def log(run: Any, found: Iterable[Row]) -> None:
    """What OpenRLHF's logger does with its rows."""
    run.define_metric("train/global_step")
    run.define_metric("train/*", step_metric="train/global_step", step_sync=True)
    run.define_metric("eval/epoch")
    run.define_metric("eval/*", step_metric="eval/epoch", step_sync=True)
    for step, kind, metrics in found:
        run.log({f"{kind}/{name}": value for name, value in {**metrics, "global_step": step}.items()})
    run.finish()


def read(path: Path, options: Options | None = None) -> list[ImportedRun]:
    wandb.teardown()  # a run may have ended before its log is written out
    runs: list[ImportedRun] = reader.read(path, options or Options())
    return runs


def test_an_offline_run_of_openrlhf_has_its_configuration(tmp_path: Path) -> None:
    """32 responses in steps of 16, gone over twice: 4 optimizer steps a rollout batch.

    NaN comes back as missing. An evaluation that is logged late takes nothing away from what stands before it.
    """
    run = start(tmp_path, OPENRLHF, name="mine")
    with_nan = ((s, k, m | ({"kl": math.nan} if s == 2 else {})) for s, k, m in rows(1, 4))
    log(run, itertools.chain(with_nan, [(1, "eval", {"eval_late_pass1": 0.5})]))
    assert reader.looks_like(tmp_path / "wandb") and not reader.looks_like(tmp_path)
    (found,) = read(tmp_path / "wandb")
    assert (found.name, found.system, found.num_prompts, found.group_size) == ("mine", "openrlhf", 8, 4)
    assert (found.algorithm, found.lr, found.seed) == ("grpo", 1e-6, 3)
    assert found.axes == {"model": "models/small", "passes": 2, "mini_batch_size": 16}
    assert [(u.samples_trained, u.optimizer_steps) for u in found.updates] == [(32, 4), (64, 4), (96, 4), (128, 4)]
    assert [u.metrics.get("policy/ref_kl") for u in found.updates] == [0.001, None, 0.001, 0.001]
    assert [(e.samples_trained, dict(e.scores)) for e in found.evals] == [
        (32, {"eval/eval_late_pass1": 0.5}),
        (64, {"eval/eval_gsm8k_pass1": 0.25}),
        (128, {"eval/eval_gsm8k_pass1": 0.45}),
    ]


def test_newer_openrlhf_nests_its_configuration(tmp_path: Path) -> None:
    nested = {
        "rollout": {"batch_size": 8, "n_samples_per_prompt": 4},
        "train": {"batch_size": 32, "max_epochs": 1},
        "actor": {"adam": {"lr": 2e-6}},
    }
    log(start(tmp_path, nested), rows(1, 2))
    (found,) = read(next((tmp_path / "wandb").glob("offline-run-*")))
    assert (found.num_prompts, found.group_size, found.lr, found.axes) == (
        8,
        4,
        2e-6,
        {"passes": 1, "mini_batch_size": 32},
    )


def test_attempts_of_a_run_are_joined_and_the_last_counts(tmp_path: Path) -> None:
    """Killed after step 5, resumed from 3 under the same id: steps 4 and 5 and the evaluation at 4 count once."""
    log(start(tmp_path, OPENRLHF, id="same"), rows(1, 5))
    log(start(tmp_path, OPENRLHF, id="same", resume="allow"), rows(4, 6, bonus=0.01))
    log(start(tmp_path, {**OPENRLHF, "seed": 4}, id="other"), rows(1, 2))
    same, other = read(tmp_path / "wandb")
    assert [u.scores["rollout/reward_mean"] for u in same.updates] == pytest.approx([0.1, 0.2, 0.3, 0.41, 0.51, 0.61])
    assert [(e.samples_trained, e.scores["eval/eval_gsm8k_pass1"]) for e in same.evals] == [
        (64, 0.25),
        (128, pytest.approx(0.46)),
        (192, pytest.approx(0.66)),
    ]
    assert "2 attempts of the run were joined." in same.assumptions
    assert "2 steps were made again by a later attempt; the later ones count." in same.assumptions
    assert len(other.updates) == 2 and same.source != other.source


def test_rows_of_trl_need_their_global_step(tmp_path: Path) -> None:
    """TRL's own rows as its callback logs them. A row without a global step, as its profiler writes them, has no N."""
    run = start(tmp_path, {"num_generations": 4})
    for row in json.loads((FIXTURES / "plain" / "trainer_state.json").read_text())["log_history"]:
        metrics = {n.replace("eval_", "eval/", 1) if n[:5] == "eval_" else f"train/{n}": x for n, x in row.items()}
        run.log(metrics | {"train/global_step": row["step"]})
        run.log({"profiling/Time taken: GRPOTrainer._prepare_inputs": 0.1})
    run.config.update({"generation_batch_size": 32, "steps_per_generation": 2, "gradient_accumulation_steps": 2})
    run.finish()
    (found,) = read(tmp_path / "wandb")
    assert (found.system, found.num_prompts, found.group_size) == ("trl", 8, 4)
    assert [u.samples_trained for u in found.updates] == [32 * step for step in range(1, 9)]
    assert found.updates[0].scores["reward"] == 7 / 32 and found.updates[3].apart_s["evaluate"] > 0
    assert "11 rows without a global step were left out." in found.assumptions


def test_a_run_of_verl_steps_with_the_client(tmp_path: Path) -> None:
    """log(data, step=step): 64 prompts x 8; the validation before training is a row of its own, the next shares one."""
    nested = {"data": {"train_batch_size": 64, "seed": 1}, "actor_rollout_ref": {"rollout": {"n": 8}}}
    run = start(tmp_path, nested)
    run.log({"val-core/gsm8k/acc/mean@1": 0.125}, step=0)
    for step in (1, 2, 3):
        row = {"critic/score/mean": step / 8, "actor/pg_loss": 0.1, "timing_s/gen": 3.0, "timing_s/step": 8.0}
        validation = {"val-core/gsm8k/acc/mean@1": 0.5} if step == 2 else {}
        run.log({**row, **validation, "training/global_step": step}, step=step)
    run.finish()
    (found,) = read(tmp_path / "wandb")
    assert (found.system, found.num_prompts, found.group_size, found.seed) == ("verl", 64, 8, 1)
    assert [(u.samples_before, u.scores["critic/score/mean"]) for u in found.updates] == [
        (0, 0.125),
        (512, 0.25),
        (1024, 0.375),
    ]
    assert [(e.samples_trained, *e.scores.values()) for e in found.evals] == [(0, 0.125), (1024, 0.5)]


def test_a_step_of_nobody_is_the_number_of_calls_and_columns_say_the_rest(tmp_path: Path) -> None:
    run = start(tmp_path, {})
    for step in range(1, 4):
        run.log({"prompts": 8 * step, "acc": step / 4})
    run.finish()
    columns = {"prompts_trained": "prompts", "score": "acc"}
    (found,) = read(tmp_path / "wandb", Options(num_prompts=8, group_size=4, columns=columns))
    assert [(e.samples_trained, e.scores) for e in found.evals] == [
        (32, {"acc": 0.25}),
        (64, {"acc": 0.5}),
        (96, {"acc": 0.75}),
    ]


def test_an_empty_history_is_refused_and_of_several_runs_named(tmp_path: Path) -> None:
    start(tmp_path, OPENRLHF, id="empty").finish()
    (log_file,) = (tmp_path / "wandb").glob("offline-*/run-empty.wandb")
    with pytest.raises(InputError, match=r"run-empty\.wandb has an empty history: no number was logged"):
        read(log_file)
    log(start(tmp_path, OPENRLHF, id="full"), rows(1, 2))
    (found,) = read(tmp_path / "wandb")
    assert found.assumptions[-1] == f"Left out: {log_file} has an empty history: no number was logged."


def test_a_log_that_was_cut_off_counts_as_far_as_it_goes(tmp_path: Path) -> None:
    log(start(tmp_path, OPENRLHF, id="cut"), rows(1, 8))
    (file,) = (tmp_path / "wandb").glob("offline-*/run-cut.wandb")
    wandb.teardown()
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    (found,) = read(file)
    assert 2 <= len(found.updates) <= 5
    assert any("reached the end of an incomplete .wandb file" in text for text in found.assumptions)
    file.write_bytes(b"no log at all")
    with pytest.raises(InputError, match=r"empty history: no number was logged \(Of run-cut.wandb .* bad header"):
        read(file)


def test_an_online_history_is_scanned_whole(tmp_path: Path, server: WandbServer) -> None:
    """2,500 rows come in three pages; a sampled history, another operation, would be 500 of them."""
    run = start(tmp_path, {**OPENRLHF, "train_batch_size": 32, "max_epochs": 1}, "online", entity="me", id="long")
    log(run, ((step, "train", {"policy_loss": 0.1, "return": 0.5, "reward": step / 2500}) for step in range(1, 2501)))
    (found,) = read(Path("wandb://me/p/long"))
    assert [u.scores["reward"] for u in found.updates] == [step / 2500 for step in range(1, 2501)]
    assert found.updates[-1].samples_trained == 32 * 2500
    assert server.asked.count("HistoryPage") == 3


def test_a_project_gives_all_its_runs(tmp_path: Path, server: WandbServer) -> None:
    for seed in (0, 1):
        config = {**OPENRLHF, "seed": seed}
        log(start(tmp_path, config, "online", entity="me", id=f"run{seed}", name=f"s{seed}"), rows(1, 2, 0.01 * seed))
    found = read(Path("wandb://me/p"))
    assert [(run.name, run.seed, str(run.source)) for run in found] == [
        ("s0", 0, "wandb:/me/p/run0"),
        ("s1", 1, "wandb:/me/p/run1"),
    ]
    with pytest.raises(InputError, match="wandb://me/p/nope is not on the server: Could not find run"):
        read(Path("wandb://me/p/nope"))
    with pytest.raises(InputError, match="an online run is wandb://ENTITY/PROJECT/RUN_ID"):
        read(Path("wandb://me"))


def test_without_a_server_the_exit_code_is_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.chdir(tmp_path)
    assert main(["import", "wandb://me/p/run", "--out", str(tmp_path / "mine")]) == 3
    assert "the W&B server did not let us in" in capsys.readouterr().err


def test_from_offline_folders_to_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two seeds of 8 updates: 32 responses in 8 s are 4 a second."""
    for seed in (3, 5):
        log(start(tmp_path, {**OPENRLHF, "seed": seed}, name="grpo"), rows(1, 8, bonus=0.001 * seed))
    wandb.teardown()
    out = tmp_path / "mine"
    assert (
        main(
            ["import", str(tmp_path / "wandb"), "--out", str(out), "--target", "0.5", "--score", "rollout/reward_mean"]
        )
        == 0
    )
    assert "2 runs imported" in capsys.readouterr().out
    sweep = analysis.load_sweep(out)
    assert sorted(sweep.trials["seed"]) == [3, 5] and sweep.arms["train_batch"].tolist() == [32]
    seconds = sweep.updates[["generate_s", "reward_s", "train_s", "sync_s"]].sum(axis=1)
    assert sweep.updates["samples"].sum() / seconds.sum() == 4.0
    report = analysis.analyse(sweep).report
    (arm,) = report["arms"]
    assert arm["throughput"]["samples_per_s"] == pytest.approx(4.0)
    # reward (s + .03)/10 and (s + .05)/10 of policies at 32 (s - 1): 0.5 lies at s = 4.97 and 4.95, near N = 127
    found = [one["estimate"] for one in arm["samples_to_target"]["per_seed"]]
    assert found == pytest.approx([127, 126.4], rel=0.05)
