"""The loop: true counters, the common grid, prompts, divergence, learning, any model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from harness.models import character_tokenizer
from harness.parts import build_parts
from harness.plan import PlannedTrial
from harness.run_dir import RunDir
from harness.tasks.digits import ReverseDigits
from harness.tracking.jsonl import read_records
from harness.trial import run_trial
from harness.types import Prompt, StepRecord
from harness.update import Progress, run_update
from tests.harness.small import LEARNS, planned_trial, trial_dir


def run(trial: PlannedTrial, root: Path, name: str = "trial") -> list[StepRecord]:
    return list(run_trial(trial, trial_dir(root, name), root))


def of_kind(records: list[StepRecord], kind: str) -> list[StepRecord]:
    return [record for record in records if record.kind == kind]


def test_counters_count_what_happened(tmp_path: Path) -> None:
    # 4 prompts x 4 responses = 16 a batch; mini-batches of 8 -> 2 optimizer steps of 1 backward pass each.
    trial = planned_trial(budget_samples=40, batch__mini_batch_size=8)
    train = of_kind(run(trial, tmp_path), "train")
    # The budget of 40 is no multiple of 16: the last batch is whole and its overshoot is recorded.
    assert [record.samples_trained for record in train] == [16, 32, 48]
    assert [record.samples_generated for record in train] == [16, 32, 48]
    assert [record.optimizer_steps for record in train] == [2, 4, 6]
    outcome = RunDir(trial_dir(tmp_path)).outcome()
    assert outcome is not None
    assert (outcome.status, outcome.samples_trained, outcome.optimizer_steps) == ("completed", 48, 6)


def test_one_optimizer_step_per_rollout_batch_by_default(tmp_path: Path) -> None:
    train = of_kind(run(planned_trial(budget_samples=32, batch__micro_batch_size_per_gpu=4), tmp_path), "train")
    assert [record.optimizer_steps for record in train] == [1, 2]


@pytest.mark.parametrize(
    ("num_prompts", "expected"),
    [(4, [0, 48, 80, 128]), (3, [0, 48, 84, 120]), (16, [0, 64, 128])],
)
def test_every_arm_is_evaluated_once_at_the_first_boundary_after_each_grid_point(
    tmp_path: Path, num_prompts: int, expected: list[int]
) -> None:
    # Grid 40, 80, 120. B=16 reaches 48, 80, 128; B=12 reaches 48, 84, 120; B=64 passes 40 at 64, 80 and 120 at 128.
    trial = planned_trial(
        batch__num_prompts=num_prompts, evaluation__every_samples=40, budget_samples=128 if num_prompts != 3 else 120
    )
    records = run(trial, tmp_path)
    assert [record.samples_trained for record in of_kind(records, "eval")] == expected


def test_arms_see_the_same_prompts_in_the_same_order() -> None:
    def prompts(num_prompts: int, batches: int, root: Path) -> list[str]:
        parts = build_parts(planned_trial(batch__num_prompts=num_prompts).config, root)
        progress = Progress()
        return [group.prompt.text for _ in range(batches) for group in run_update(parts, progress).trained.groups]

    small, large = prompts(2, 6, Path()), prompts(6, 2, Path())
    assert small == large and len(set(small)) > 6


def test_nothing_in_metrics_depends_on_a_clock_and_two_runs_agree_bit_for_bit(tmp_path: Path) -> None:
    first, second = (run(planned_trial(), tmp_path, name) for name in ("a", "b"))
    assert [record.metrics for record in first] == [record.metrics for record in second]
    other_seed = run(planned_trial(seed=1), tmp_path, "c")
    assert [record.metrics for record in first] != [record.metrics for record in other_seed]


def test_the_record_on_disk_is_what_was_yielded_and_follows_the_contract(tmp_path: Path) -> None:
    records = run(planned_trial(), tmp_path)
    on_disk, bad = read_records(trial_dir(tmp_path) / "metrics.jsonl")
    assert bad == 0 and on_disk == [json.loads(json.dumps(record.as_json())) for record in records]
    train = next(record for record in on_disk if record["kind"] == "train")
    assert train["lr"] == 1e-3 and train["num_prompts"] == 4 and train["group_size"] == 4 and train["step"] == 1
    assert set(train["seconds"]) == {"generate", "reward", "train", "sync"}
    assert train["tokens_trained"] == train["tokens_generated"] == train["metrics"]["response/length_mean"] * 16
    assert {"reward/mean", "reward/zero_variance_frac", "response/truncated_frac", "policy/entropy"} <= set(
        train["metrics"]
    )
    assert train["metrics"]["policy/logprob_gap_max"] < 1e-4
    evaluation = next(record for record in on_disk if record["kind"] == "eval")
    assert {"eval/score", "eval/score_se", "eval/greedy_score", "eval/expected_score"} <= set(evaluation["metrics"])
    config = json.loads((trial_dir(tmp_path) / "config.json").read_text())
    assert config["optimizer"]["lr"] == 1e-3 and config["seed"] == 0
    assert json.loads((trial_dir(tmp_path) / "provenance.json").read_text())["packages"]["torch"] == torch.__version__


def test_evaluation_touches_no_training_state(tmp_path: Path) -> None:
    often = of_kind(run(planned_trial(evaluation__every_samples=16), tmp_path, "often"), "train")
    never = of_kind(run(planned_trial(evaluation__every_samples=4096), tmp_path, "never"), "train")
    assert [record.metrics for record in often] == [record.metrics for record in never]


def test_the_expected_score_is_the_mean_of_sampled_scores(tmp_path: Path) -> None:
    trial = planned_trial(evaluation__num_prompts=100, model__warm_start={"steps": 60, "lr": 3e-3}, budget_samples=16)
    metrics = of_kind(run(trial, tmp_path), "eval")[0].metrics
    assert 0.05 < metrics["eval/expected_score"] < 0.95
    # Given the policy a sampled score varies around it by sqrt(sum p(1-p))/n, at most .05 for 100 prompts.
    assert abs(metrics["eval/score"] - metrics["eval/expected_score"]) < 3 * 0.05


class BrokenTask(ReverseDigits):
    """Rewards turn to NaN after some prompts."""

    def score(self, prompt: Prompt, response: str) -> float:
        return float("nan") if prompt.index >= 8 else float(len(response) % 2)


def test_a_nan_reward_ends_the_trial_as_diverged_with_everything_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.parts.make_task", lambda config: BrokenTask(config.num_digits))
    trial = planned_trial(evaluation__num_prompts=8)
    records = run(trial, tmp_path)
    outcome = RunDir(trial_dir(tmp_path)).outcome()
    assert outcome is not None and outcome.status == "diverged"
    assert outcome.reason.startswith("the reward of response 0 to prompt 8 is nan")
    # Two batches of four prompts were trained; the third was generated and never trained.
    assert (outcome.samples_trained, outcome.samples_generated) == (32, 48)
    assert read_records(trial_dir(tmp_path) / "metrics.jsonl")[0] == [
        json.loads(json.dumps(record.as_json())) for record in records
    ]


def test_a_rate_that_blows_up_is_data(tmp_path: Path) -> None:
    trial = planned_trial(**LEARNS, optimizer__lr=1e30, budget_samples=160)
    run(trial, tmp_path)
    outcome = RunDir(trial_dir(tmp_path)).outcome()
    assert outcome is not None and outcome.status == "diverged" and outcome.samples_trained < 160


def test_training_raises_the_score_and_the_opposite_advantage_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "batch__num_prompts": 16,
        "batch__group_size": 8,
        "evaluation__every_samples": 3072,
        "budget_samples": 3072,
    }

    def scores(name: str) -> list[float]:
        evaluations = of_kind(run(planned_trial(**LEARNS, **settings), tmp_path, name), "eval")
        return [record.metrics["eval/expected_score"] for record in evaluations]

    start, end = scores("right")
    assert end > start + 0.15
    from harness.algorithm import grpo

    right = grpo.group_relative
    monkeypatch.setattr(grpo, "group_relative", lambda *arguments: -right(*arguments))
    assert scores("wrong")[-1] < start


def test_any_causal_language_model_goes_the_same_way(tmp_path: Path) -> None:
    """A GPT-2 with a chat template, from a local folder."""
    tokenizer = character_tokenizer("0123456789=<>user")
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=32, n_layer=1, n_head=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    records = run(planned_trial(model__name=str(tmp_path / "model"), budget_samples=32), tmp_path)
    train = of_kind(records, "train")
    assert [record.samples_trained for record in train] == [16, 32]
    assert max(record.metrics["policy/logprob_gap_max"] for record in train) < 1e-4
    parts = build_parts(planned_trial(model__name=str(tmp_path / "model")).config, tmp_path)
    group = parts.engine.generate([Prompt(0, "12=", "21")], parts.train_sampling())[0]
    assert parts.tokenizer.decode(group.prompt_ids_L) == "<user>12="


def test_the_kl_term_pulls_towards_the_start(tmp_path: Path) -> None:
    def last_kl(coefficient: float, name: str) -> float:
        trial = planned_trial(**LEARNS, algorithm__kl_coef=coefficient, budget_samples=320)
        return of_kind(run(trial, tmp_path, name), "train")[-1].metrics["policy/ref_kl"]

    first = of_kind(run(planned_trial(algorithm__kl_coef=0.1, budget_samples=16), tmp_path, "first"), "train")[0]
    assert first.metrics["policy/ref_kl"] == pytest.approx(0, abs=1e-6)
    assert last_kl(10.0, "strong") < last_kl(1e-6, "weak") / 2


def test_warm_up_is_counted_in_samples(tmp_path: Path) -> None:
    for num_prompts, name in ((4, "small"), (8, "large")):
        trial = planned_trial(batch__num_prompts=num_prompts, optimizer__warmup_samples=64, budget_samples=96)
        rates = {record.samples_trained: record.extra["lr"] for record in of_kind(run(trial, tmp_path, name), "train")}
        np.testing.assert_allclose([rates[32], rates[64], rates[96]], [5e-4, 1e-3, 1e-3])


def test_noise_is_measured_every_so_many_samples_and_changes_no_update(tmp_path: Path) -> None:
    def train(every_samples: int) -> list[StepRecord]:
        trial = planned_trial(**LEARNS, statistics__every_samples=every_samples, budget_samples=576)
        return of_kind(run(trial, tmp_path, str(every_samples)), "train")

    measured, plain = train(32), train(0)
    # B = 16: measured at every second update; one measurement in eight, at 256 and 512 samples, splits the noise.
    with_noise = [record.samples_trained for record in measured if "grad/noise_trace" in record.metrics]
    assert with_noise == list(range(32, 577, 32))
    split = [record.samples_trained for record in measured if "grad/noise_between_trace" in record.metrics]
    assert split == [256, 512]
    assert not any("grad/noise_trace" in record.metrics for record in plain)
    # Half-batches instead of the whole: the same up to rounding, and so is what is sampled.
    for one, other in zip(measured, plain, strict=True):
        assert one.metrics["reward/mean"] == other.metrics["reward/mean"]
        assert one.metrics["grad/actor_norm"] == pytest.approx(other.metrics["grad/actor_norm"], rel=1e-3, abs=1e-6)
    # E|g|^2 = |G|^2 + tr(S)/B holds exactly for the two estimates of an update.
    record = next(record for record in measured if record.metrics.get("grad/noise_trace"))
    whole = record.metrics["grad/signal_sq"] + record.metrics["grad/noise_trace"] / 16
    assert whole == pytest.approx(record.metrics["grad/actor_norm"] ** 2, rel=1e-6)
    at_split = next(record for record in measured if "grad/noise_between_trace" in record.metrics)
    parts = 4 * at_split.metrics["grad/noise_between_trace"] + at_split.metrics["grad/noise_within_trace"]
    assert parts == pytest.approx(at_split.metrics["grad/noise_trace"], rel=1e-6, abs=1e-9)


def test_a_checkpoint_without_the_records_before_it_is_not_gone_on_from(tmp_path: Path) -> None:
    trial = planned_trial(execution__checkpoint_every_samples=48)
    whole = run(trial, tmp_path)
    path = trial_dir(tmp_path) / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    # An update in the middle is gone, its line overwritten: the trial is done again, and every record is there.
    path.write_text("".join("garbage\n" if '"step": 2' in line else line for line in lines))
    again = run(trial, tmp_path)
    assert [record.metrics for record in again] == [record.metrics for record in whole]
    # With every record in place it goes on from the last checkpoint, at 96 samples.
    assert [record.samples_trained for record in run(trial, tmp_path)] == [112, 128, 128]
