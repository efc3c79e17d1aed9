"""From a folder of logs to a table of r_N in two commands, and what wrong input is told."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import analysis
from analysis.__main__ import main
from analysis.importing import command
from tests.analysis.importing.verl_logs import VerlRun

# P -> (r_N, seconds a row); G = 8, so B = 64 to 512. Rates follow the square root.
ARMS = {8: (1.0, 4.0), 16: (1.0, 5.0), 32: (1.2, 8.0), 64: (2.0, 12.0)}
REFERENCE_SAMPLES = 3000.0


def write_logs(folder: Path, jsonl: bool = False) -> Path:
    """Four batches, two seeds each, of one truth: the score is 0.5 at r_N * 3,000 samples, up to 5% by seed."""
    for num_prompts, (r_N, step_s) in ARMS.items():
        for seed in (0, 1):
            own = (
                REFERENCE_SAMPLES * r_N * math.exp(0.05 * np.random.default_rng([num_prompts, seed]).standard_normal())
            )
            run = VerlRun(
                num_prompts=num_prompts,
                steps=12288 // (8 * num_prompts),
                score=lambda samples, own=own: 1 - 0.9 * math.exp(-math.log(1.8) * samples / own),
                score_sd=0.005,
                lr=1e-6 * math.sqrt(num_prompts / 8),
                step_s=step_s,
                test_freq=64 // num_prompts,
                seed=seed,
            )
            if jsonl:
                run.jsonl(folder / f"p{num_prompts}" / f"seed{seed}.jsonl")
            else:
                run.console(folder / f"p{num_prompts}" / f"seed{seed}.log")
    return folder


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_logs(tmp_path_factory.mktemp("logs"))


def run_import(*arguments: str | Path) -> int:
    return main(["import", *map(str, arguments)])


def test_eight_logs_become_a_table_of_r_N_in_two_commands(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_import(logs, "--out", tmp_path / "mine", "--target", "0.5") == 0
    printed = capsys.readouterr().out
    assert "8 runs imported into" in printed and "p16/seed1" not in printed and "p16-seed1" in printed
    assert "The curve is val-core/openai/gsm8k/acc/mean@1, a validation score, 25 points a run" in printed
    assert main(["report", str(tmp_path / "mine")]) == 0
    report = json.loads((tmp_path / "mine" / "report" / "report.json").read_text())
    arms = {arm["num_prompts"]: arm for arm in report["arms"]}
    assert {p: (arm["num_seeds"], arm["lr_rule"]) for p, arm in arms.items()} == dict.fromkeys(ARMS, (2, "sqrt"))
    for num_prompts, (r_N, step_s) in ARMS.items():
        # Two seeds of 5% each: the truth lies within the interval, and q is 8 P / step_s to 2%.
        low, high = arms[num_prompts]["r_N"]["ci95"]
        assert low <= r_N <= high and 0.85 * r_N < arms[num_prompts]["r_N"]["estimate"] < 1.15 * r_N
        assert arms[num_prompts]["throughput"]["samples_per_s"] == pytest.approx(8 * num_prompts / step_s, rel=0.02)
    assert any("on top of the step" in text for text in report["warnings"])


def test_seconds_of_phases_and_scores_arrive_in_the_tables(logs: Path, tmp_path: Path) -> None:
    run_import(logs / "p8", "--out", tmp_path / "mine", "--score", "critic/score/mean")
    sweep = analysis.load_sweep(tmp_path / "mine")
    assert sweep.metric == "critic/score/mean" and sweep.reference_arm == "P8-G8"
    # 192 updates a run; a training score is of the policy before its update, so the first is at 0 and the last at 12,224.
    scores = sweep.evals[sweep.evals["seed"] == 0].dropna(subset=[sweep.metric])
    assert scores["samples_trained"].iloc[[0, 1, -1]].tolist() == [0, 64, 12224]
    first = sweep.updates.iloc[0]
    assert first["generate_s"] / first["train_s"] == pytest.approx(0.6 / 0.38)
    assert (first["tokens_generated"], first["samples"], first["lr"]) == (12800, 64, 1e-6)


def test_runs_are_added_to_a_sweep_and_read_anew(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine"
    run_import(logs / "p8" / "seed0.log", "--out", out, "--target", "0.5", "--score", "critic/score/mean")
    run_import(logs / "p16", "--out", out)
    run_import(logs / "p16" / "seed1.log", "--out", out)
    assert f"1 run imported into {out}, 2 there before" in capsys.readouterr().out.replace("\n", " ")
    plan = json.loads((out / "plan.json").read_text())
    assert [(t["trial_id"], t["arm"], t["seed"]) for t in plan["trials"]] == [
        ("seed0", "P8-G8", 0),
        ("seed0-2", "P16-G8", 0),
        ("seed1", "P16-G8", 1),
    ]
    assert plan["target"] == {"metric": "critic/score/mean", "value": 0.5}


def test_logs_without_a_batch_come_from_a_list_of_runs(tmp_path: Path) -> None:
    write_logs(tmp_path / "logs", jsonl=True)
    rows = [f"logs/p{p}/seed{seed}.jsonl,{p},8,{7 + seed}" for p in ARMS for seed in (0, 1)]
    (tmp_path / "runs.csv").write_text("\n".join(["path,num_prompts,group_size,seed", *rows]) + "\n")
    assert run_import("--runs", tmp_path / "runs.csv", "--out", tmp_path / "mine") == 0
    sweep = analysis.load_sweep(tmp_path / "mine")
    assert sweep.arms["train_batch"].tolist() == [64, 128, 256, 512]
    assert sorted(sweep.trials["seed"].unique()) == [7, 8]
    # JSONL holds the rate that was applied.
    assert sweep.arms["lr"].tolist() == pytest.approx([1e-6 * math.sqrt(k) for k in (1, 2, 4, 8)], rel=1e-5)


def test_a_table_with_a_column_map(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("it,acc\n" + "".join(f"{step},{step / 20}\n" for step in range(1, 16)))
    options = ("--columns", "step=it,score=acc", "--num-prompts", "4", "--group-size", "2", "--seed", "3")
    assert run_import(tmp_path / "a.csv", *options, "--arm", "mine", "--out", tmp_path / "s") == 0
    sweep = analysis.load_sweep(tmp_path / "s")
    assert sweep.metric == "acc" and sweep.trials[["arm", "seed"]].values.tolist() == [["mine", 3]]
    assert sweep.evals["samples_trained"].tolist() == [8 * step for step in range(1, 16)]


def test_seconds_that_are_not_divided_or_not_there(tmp_path: Path) -> None:
    # B = 4; two of three updates have their seconds, 2 s each: q = 8 / 4 s = 2, not 12 / 4 s.
    (tmp_path / "a.csv").write_text("step,train_score,seconds\n1,0.1,2.0\n2,0.2,\n3,0.3,2.0\n")
    options = ("--num-prompts", "2", "--group-size", "2", "--target", "0.2")
    assert run_import(tmp_path / "a.csv", *options, "--out", tmp_path / "s") == 0
    throughput = analysis.analyse(analysis.load_sweep(tmp_path / "s")).report["arms"][0]["throughput"]
    assert (throughput["samples_per_s"], throughput["source"]) == (2.0, "records")
    assert throughput["generate_s_per_sample"] is None and throughput["tokens_per_s"] is None
    assert main(["report", str(tmp_path / "s")]) == 0


def test_seeds_are_read_off_paths(tmp_path: Path) -> None:
    for number, name in enumerate(("grpo-seed-12", "seed_3/train", "a-s7", "s1-model")):
        run = VerlRun(num_prompts=4, steps=6, score_sd=0.01, seed=number)
        run.console(tmp_path / "logs" / f"{name}.log")
    assert run_import(tmp_path / "logs", "--out", tmp_path / "s") == 0
    found = analysis.load_sweep(tmp_path / "s").trials["seed"].to_dict()
    # s1 at the head of a name is part of it; without a seed of its own the arm is numbered by path.
    assert found == {"a-s7": 0, "grpo-seed-12": 1, "s1-model": 2, "seed_3-train": 3}
    (tmp_path / "logs" / "s1-model.log").unlink()
    assert run_import(tmp_path / "logs", "--out", tmp_path / "t") == 0
    found = analysis.load_sweep(tmp_path / "t").trials["seed"].to_dict()
    assert found == {"seed_3-train": 3, "a-s7": 7, "grpo-seed-12": 12}


def test_wrong_input_is_one_sentence_and_writes_nothing(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "runs.csv").write_text("path,batch\na.log,3\n")
    jsonl = VerlRun(num_prompts=4, steps=6).jsonl(tmp_path / "a.jsonl")
    log = logs / "p8" / "seed0.log"
    for arguments, message in (
        ([], "there is nothing to import"),
        ([tmp_path / "missing"], "missing does not exist"),
        ([tmp_path / "empty"], "empty is not recognised: it holds no log of"),
        ([tmp_path / "notes.txt"], "notes.txt is not recognised: it is no log of"),
        ([tmp_path / "notes.txt", "--format", "verl"], "notes.txt has no rows of verl"),
        ([jsonl], "does not say num_prompts and group_size"),
        ([log, jsonl], "does not say num_prompts and group_size"),
        ([log, "--num-prompts", "64"], "itself says num_prompts = 8"),
        ([logs, "--seed", "1"], "--seed 1: .* holds 8 logs; a seed is of one"),
        ([log, log, "--seed", "1"], "--seed 1: 2 logs are named; a seed is of one"),
        ([log, "--score", "acc"], "--score acc: not every run has it"),
        ([log, "--reference", "P9"], "--reference P9: no such arm; there are P8-G8"),
        ([log, "--columns", "step"], "--columns step: needed is FIELD=NAME"),
        (["--runs", tmp_path / "none.csv"], "there is no such file"),
        (["--runs", tmp_path / "runs.csv"], "line 2: column 'batch'; its columns are path, format, arm"),
    ):
        capsys.readouterr()
        assert run_import(*arguments, "--out", tmp_path / "out") == 2, arguments
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and error.startswith("error: ")
        assert re.search(message, error), error
        assert not (tmp_path / "out").exists()


def test_a_measured_sweep_is_not_mixed_with_imported_runs(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "plan.json").write_text(json.dumps({"format": 1, "trials": []}))
    assert run_import(logs / "p8", "--out", tmp_path / "own") == 2
    assert "holds a sweep that was not imported" in capsys.readouterr().err


def test_the_help_says_how_eight_logs_become_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    assert command.EPILOG.strip().splitlines()[-1].strip() in capsys.readouterr().out
