"""A profile measures until it knows enough, goes on where it was stopped, and moves no weight."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analysis.critical import plateau
from harness.__main__ import main
from harness.config import ProfileConfig
from harness.courier import Home
from harness.errors import InputError
from harness.execution import ExecutionConfig
from harness.knee import knee, log_mean
from harness.members import in_process
from harness.parts import build_parts
from harness.plan import Plan, PlannedTrial
from harness.profile import ProfileFunctions, run_profile, with_lengths
from harness.profiling import generation, measure_arm, training
from harness.tracking.jsonl import read_objects
from harness.update import Progress, generate
from tests.harness.faults import InlinePool, small_plan
from tests.harness.small import planned_trial

FUNCTIONS = ProfileFunctions(measure=f"{__name__}:made_up", describe=f"{__name__}:no_machine")
SETTINGS = ProfileConfig(min_seconds=0.25, least_rounds=3, half_width=0.05, limit_s=1000.0)
NOW_S = 0.0


def made_up(trial: PlannedTrial, results_dir: Path, round_: int, min_seconds: float) -> Iterator[dict[str, Any]]:
    """10 s a measurement: 1000 B / (B + 100) responses a second, in odd rounds up and in even ones down by `noise`."""
    global NOW_S
    NOW_S += 10.0
    faults = json.loads((results_dir / "faults.json").read_text()) if (results_dir / "faults.json").exists() else {}
    with open(results_dir / "measured.log", "a") as file:
        file.write(f"{round_} {trial.arm} {min_seconds}\n")
    if trial.arm == faults.get("fails"):
        raise RuntimeError("CUDA out of memory")
    batch = trial.config.batch.train_batch
    rate = 1000 * batch / (batch + 100) * math.exp(faults.get("noise", 0.0) * (-1) ** (round_ + 1))
    rate *= math.exp(faults.get("noise_of", {}).get(trial.arm, 0.0) * (-1) ** (round_ + 1))
    common = {"arm": trial.arm, "batches": 4, "responses": 4 * batch, "tokens": 28 * batch}
    yield common | {
        "phase": "generate",
        "seconds": {"generate": 4 * batch / rate},
        "engine": {"places": batch, "busy_frac": 1.0, "in_flight_mean": batch * 0.8, "tail_s": 0.1, "tail_frac": 0.2},
        "response_tokens": {"mean": 7.0, "p95": 7.0, "max": 6 + round_},
        "prompt_tokens_mean": 7.0,
        "memory": {"responses": 64 * batch, "source": "made up"},
        "startup_s": 1.0,
    }
    seconds = {"train": 4 * batch / rate, "reward": 0.4, "sync": 0.2}
    yield common | {"phase": "train", "seconds": seconds, "micro_batch": batch}


def no_machine(config: Any, results_dir: Path) -> dict[str, Any]:
    return {"machine": {"device": "made up"}, "model": {}}


def profile(plan: Plan, root: Path, settings: ProfileConfig = SETTINGS) -> tuple[int, dict[str, Any]]:
    """Run it in this process; the exit code and profile.json."""

    @contextmanager
    def open_pool(execution: ExecutionConfig, most: int, home: Home) -> Iterator[InlinePool]:
        yield InlinePool(most)

    code = run_profile(plan, plan.trials, settings, root, FUNCTIONS, open_pool, clock=lambda: NOW_S)
    found: dict[str, Any] = json.loads((root / "faults" / "profile.json").read_text())
    return code, found


def measured(root: Path) -> list[list[str]]:
    return [line.split() for line in (root / "measured.log").read_text().splitlines()]


def test_steady_rates_end_after_the_least_rounds_each_arm_once_in_each_in_another_order(tmp_path: Path) -> None:
    code, found = profile(small_plan([1, 4, 16, 64], seeds=2), tmp_path)
    assert code == 0 and found["rounds"] == 3 and found["ended"] == "every 95% interval is within 5% of its mean"
    log = measured(tmp_path)
    assert log[0] == ["0", "P1-G8-sqrt", "0.0"]  # warms up, and is not kept
    rounds = [[arm for number, arm, _ in log[1:] if number == str(n)] for n in (1, 2, 3)]
    assert all(sorted(arms) == sorted(rounds[0]) for arms in rounds) and len({tuple(arms) for arms in rounds}) > 1
    assert len(read_objects(tmp_path / "faults" / "profile.jsonl")[0]) == 3 * 4 * 2

    generated, trained = found["curves"]
    assert (generated["phase"], trained["phase"]) == ("generate", "train")
    assert [point["in_flight"] for point in generated["points"]] == [8, 32, 128, 512]
    # 1000 * 8 / 108 responses a second.
    assert generated["points"][0]["responses_per_s"]["estimate"] == pytest.approx(74.07, rel=1e-3)
    assert generated["points"][0]["tokens_per_s"]["estimate"] == pytest.approx(7 * 74.07, rel=1e-3)
    assert generated["points"][0]["response_tokens"] == {"mean": 7.0, "p95": 7.0, "max": 9}
    assert generated["memory_limit"]["responses"] == 64 * 512
    assert trained["points"][3]["seconds_beside"] == pytest.approx({"reward": 0.1, "sync": 0.05})
    # 561 a second at 128 and 837 at 512: half of 512 has less than 90% of that.
    assert generated["knee"]["reached"] is False and generated["knee"]["estimate"] is None


def test_noisy_rates_are_measured_until_their_interval_is_narrow(tmp_path: Path) -> None:
    # Up and down by 5%: after 8 rounds t_7 0.05 / sqrt(7) = 2.365 * 0.0189 = 0.0447, a factor 1.0457; after 7 it is
    # 2.447 * 0.05 sqrt(8/7 / 7) = 0.0494, a factor 1.0507.
    (tmp_path / "faults.json").write_text('{"noise": 0.05}')
    code, found = profile(small_plan([1, 4], seeds=1), tmp_path)
    assert code == 0 and found["rounds"] == 8
    assert found["curves"][0]["points"][0]["responses_per_s"]["half_width"] == pytest.approx(0.0457, abs=1e-4)


def test_the_knee_has_an_interval_over_the_rounds(tmp_path: Path) -> None:
    """90% of 953.4 a second at 2,048 lies between 512, 836.6 up and down by 1% from round to round, and 2,048.

    Up: log(858.0 / 845.0) / log(953.4 / 845.0) = 0.127 of the way, 611; down: 0.251, 726. Four rounds: mean 666, and
    t_3 = 3.182 times 0.0859 sqrt(4/3) / 2 on the log scale.
    """
    (tmp_path / "faults.json").write_text('{"noise_of": {"P64-G8-sqrt": 0.01}}')
    settings = SETTINGS.model_copy(update={"least_rounds": 4})
    _, found = profile(small_plan([1, 64, 256], seeds=1, budget_samples=2048), tmp_path, settings)
    for curve in found["curves"]:
        knee = curve["knee"]
        assert found["rounds"] == 4 and knee["reached"] is True and knee["bound"] is None
        assert knee["estimate"] == pytest.approx(666, rel=3e-3)
        assert knee["ci95"] == pytest.approx([666 / 1.171, 666 * 1.171], rel=5e-3)


def test_no_round_begins_that_would_go_past_the_time_limit(tmp_path: Path) -> None:
    (tmp_path / "faults.json").write_text('{"noise": 0.5}')
    # Rounds of 20 s: three are over after 60 s, a fourth would take 80.
    limited = SETTINGS.model_copy(update={"limit_s": 70.0})
    code, found = profile(small_plan([1, 4], seeds=1), tmp_path, limited)
    assert code == 0 and found["rounds"] == 3
    assert found["ended"] == "another round would go past the time limit of 70 s"
    # The next call goes on with what is there.
    assert profile(small_plan([1, 4], seeds=1), tmp_path, limited)[1]["rounds"] == 6
    assert [number for number, *_ in measured(tmp_path)] == list("0112233" + "0445566")


def test_measurements_with_other_lengths_do_not_count(tmp_path: Path) -> None:
    plan = small_plan([1, 4], seeds=1)
    assert profile(plan, tmp_path)[1]["lengths"] == "as the model ends them"
    _, again = profile(plan, tmp_path)
    assert again["rounds"] == 3 and len(measured(tmp_path)) == 1 + 3 * 2 + 1  # nothing but the warm-up
    _, forced = profile(plan, tmp_path, SETTINGS.model_copy(update={"response_tokens": 16}))
    assert forced["lengths"] == "forced to 16 tokens" and forced["rounds"] == 3
    assert len(measured(tmp_path)) == 8 + 1 + 3 * 2


def test_an_arm_that_fails_is_told_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "faults.json").write_text('{"fails": "P64-G8-sqrt"}')
    code, found = profile(small_plan([1, 4, 64], seeds=1), tmp_path)
    assert code == 1 and found["rounds"] == 3
    assert [point["arm"] for point in found["curves"][0]["points"]] == ["P1-G8-sqrt", "P4-G8-sqrt"]
    assert found["failed"] == [{"arm": "P64-G8-sqrt", "reason": "RuntimeError: CUDA out of memory"}]
    assert [arm for _, arm, _ in measured(tmp_path)].count("P64-G8-sqrt") == 1
    assert "failed: P64-G8-sqrt: RuntimeError: CUDA out of memory" in capsys.readouterr().out


def test_arms_that_differ_in_the_rate_are_one_point_and_other_group_sizes_another_curve(tmp_path: Path) -> None:
    arms = [{"batch.num_prompts": [1, 4]}, {"batch.num_prompts": 4, "optimizer.lr_rule": "fixed"},
            {"batch.num_prompts": 2, "batch.group_size": 16}]  # fmt: skip
    _, found = profile(small_plan([1], seeds=1, arms=arms), tmp_path)
    points = [[point["arm"] for point in curve["points"]] for curve in found["curves"] if curve["phase"] == "train"]
    assert points == [["P1-G8-sqrt", "P4-G8-sqrt"], ["P2-G16-sqrt"]]
    assert [curve["family"]["group_size"] for curve in found["curves"]] == [8, 16, 8, 16]
    assert found["curves"][1]["knee"] is None


def test_arms_that_need_other_processes_are_refused(tmp_path: Path) -> None:
    plan = small_plan([1], seeds=1, arms=[{"batch.num_prompts": 1}, {"batch.num_prompts": 4, "execution.threads": 2}])
    with pytest.raises(InputError, match=r"P1-G8-sqrt-threads1 and P4-G8-sqrt-threads2 need different processes"):
        profile(plan, tmp_path)


def test_the_knee_is_where_the_analysis_would_find_it() -> None:
    random = np.random.default_rng(0)
    batches = np.array([8, 32, 128, 512, 2048])
    for noise, half in ((0.0, 30), (0.03, 30), (0.05, 2), (0.02, 2000)):
        rates = 1000 * batches / (batches + half) * np.exp(noise * random.normal(size=(5, 5)))
        ours, theirs = knee(batches, rates), plateau(batches, rates)
        assert ours is not None and theirs is not None
        other = theirs.interval
        assert (ours.bound, ours.reached, ours.estimate is None) == (
            other.bound,
            theirs.reached,
            other.estimate is None,
        )
        assert ours.per_s == pytest.approx(theirs.per_s)
        for mine, its in ((ours.estimate, other.estimate), (ours.low, other.low), (ours.high, other.high)):
            assert mine == (None if its is None else pytest.approx(its))
    assert knee([8], np.ones((3, 1))) is None
    # 1, 2, 4: mean 2, s = log 2, t_2 = 4.3027, half = 4.3027 log(2) / sqrt(3).
    assert log_mean([1.0, 2.0, 4.0]).high == pytest.approx(2 * 2 ** (4.3027 / 3**0.5), rel=1e-4)


@pytest.mark.parametrize("mode", ["synchronous", "streaming"])
def test_nothing_is_learned_and_lengths_are_forced_in_both_modes(mode: str, tmp_path: Path) -> None:
    trial = planned_trial(execution__mode=mode, batch__gen_batch=32 if mode == "streaming" else 8)
    config = with_lengths(trial.config, 10)
    generated, trained = measure_arm(PlannedTrial("", "arm", 0, {}, config), tmp_path, 1, 0.01)
    assert generated["response_tokens"] == {"mean": 10.0, "p95": 10.0, "max": 10}
    assert generated["responses"] == 16 * generated["batches"] and generated["tokens"] == 10 * generated["responses"]
    assert generated["engine"]["places"] == (32 if mode == "streaming" else 8)
    assert generated["startup_s"] > 0 and generated["memory"]["source"]
    assert (trained["responses"], trained["tokens"]) == (16 * trained["batches"], 160 * trained["batches"])
    assert trained["seconds"].keys() == {"reward", "train", "sync"} and trained["micro_batch"] == 16


def test_weights_stay_as_they_are_bit_for_bit(tmp_path: Path) -> None:
    changes = {"algorithm": {"name": "ppo"}, "execution": {"engine_replicas": 2}}
    parts = build_parts(planned_trial(**changes).config, tmp_path, in_process)
    before = [weight.detach().clone() for _, weight in parts.trainer.weights()]
    found, groups = generation(parts, Progress(), None, 0.01)
    assert found["engine"]["places"] == 16 and found["engine"]["in_flight_mean"] <= 16  # two engines with 8 each
    response = generate(parts, 0, 1)[0].rollouts[0].token_ids_T
    training(parts, groups, 0.01)
    after = [weight for _, weight in parts.trainer.weights()]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert generate(parts, 0, 1)[0].rollouts[0].token_ids_T.tolist() == response.tolist()


def test_the_command_measures_a_real_sweep_on_ray(
    cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["profile.min_seconds=0.01", "profile.limit_s=0.1", "profile.response_tokens=5"]
    options = [part for setting in settings for part in ("--set", setting)]
    assert main(["profile", "sweeps/smoke.yaml", "--results", str(tmp_path), *options]) == 0
    found = json.loads((tmp_path / "smoke" / "profile.json").read_text())
    assert found["rounds"] == 1 and found["lengths"] == "forced to 5 tokens"
    assert found["model"]["hidden_size"] == 64 and found["machine"]["matmul_flop_per_s"] > 1e8
    for curve in found["curves"]:
        assert [point["train_batch"] for point in curve["points"]] == [16, 64]
        for point in curve["points"]:
            rates = point["responses_per_s"], point["tokens_per_s"]
            assert rates[1]["estimate"] == pytest.approx(5 * rates[0]["estimate"])
            assert rates[0]["half_width"] is None  # one round: no interval
    assert (tmp_path / "smoke" / "plan.json").exists()
    printed = capsys.readouterr().out
    assert "written in" in printed and "another round would go past the time limit of 0.1 s" in printed
