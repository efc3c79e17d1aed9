"""verl's logs as they come, with every trap that was seen in one, against numbers worked by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.errors import InputError
from analysis.importing import verl
from analysis.importing.run import ImportedRun, Options
from tests.analysis.importing.verl_logs import VerlRun

TASK = "\x1b[36m(main_task pid=54)\x1b[0m "
OLD_CONFIG = [
    f"{TASK}{{'actor_rollout_ref': {{'actor': {{'optim': {{'lr': 1e-06}}, 'ppo_epochs': 1,",
    f"{TASK}                                 'ppo_mini_batch_size': 2}},",
    f"{TASK}                       'rollout': {{'name': 'vllm', 'prompt_length': 1024, 'temperature': 1.0}}}},",
    f"{TASK} 'algorithm': {{'adv_estimator': 'gae'}},",
    f"{TASK} 'critic': {{'optim': {{'lr': 1e-05}}}},",
    "\x1b[36m(WorkerDict pid=55)\x1b[0m Flash Attention 2.0 only supports {'torch.float16'}, but",
    f"{TASK} 'data': {{'train_batch_size': 4, 'max_response_length': 512}},",
    f"{TASK} 'trainer': {{'n_gpus_per_node': 1, 'nnodes': 1, 'total_epochs': 15}}}}",
]


def old_row(step: int, gen: float, score: float, extra: str = "") -> str:
    """A row of 2024: `timing/`, no step time, rates in 1e-4, three digits."""
    return (
        f"{TASK}step:{step} - timing/gen:{gen:.3f} - timing/ref:1.000 - timing/values:1.000 - critic/kl:-0.000 - "
        f"timing/adv:0.500 - timing/update_critic:3.000 - critic/vf_loss:14.012 - critic/grad_norm:950.052 - "
        f"critic/lr(1e-4):0.100 - timing/update_actor:4.500 - actor/entropy_loss:0.526 - actor/pg_loss:-0.018 - "
        f"actor/grad_norm:{2 * gen:.3f} - actor/lr(1e-4):0.010 - {extra}critic/score/mean:{score:.3f} - "
        f"critic/rewards/mean:{score - 0.01:.3f} - response_length/mean:300.500 - prompt_length/mean:101.816"
    )


def old_log(path: Path, rows: list[str]) -> ImportedRun:
    path.write_text("\n".join([*OLD_CONFIG, *rows]) + "\n")
    (run,) = verl.read(path, Options())
    return run


def test_an_old_console_log_with_every_trap(tmp_path: Path) -> None:
    run = old_log(
        tmp_path / "ppo.log",
        [
            f"{TASK}\"Initial validation metrics: {{'test_score/openai/gsm8k': 0.0625}}\"",
            old_row(0, 10.0, 0.1),
            f"{TASK}validation generation end",
            old_row(1, 12.0, 0.2, "timing/testing:57.000 - val/test_score/openai/gsm8k:0.250 - "),
            old_row(2, 8.0, 0.3),
            f"{TASK}\"Final validation metrics: {{'test_score/openai/gsm8k': np.float64(0.5)}}\"",
        ],
    )
    # P = 4 prompts, no rollout.n: G = 1, so rows end at 4, 8 and 12 samples. Row 0 trains: steps count from 0.
    assert (run.num_prompts, run.group_size, run.algorithm) == (4, 1, "ppo")
    assert [update.samples_trained for update in run.updates] == [4, 8, 12]
    # A training score is of the policy before its update.
    assert [(u.samples_before, u.scores["critic/score/mean"]) for u in run.updates] == [(0, 0.1), (4, 0.2), (8, 0.3)]
    # Validation follows the update of its row: after row 1 the policy has 8 samples. The printed ones frame the run.
    scores = [(one.samples_trained, *one.scores.items()) for one in run.evals]
    name = "val/test_score/openai/gsm8k"
    assert scores == [(0, (name, 0.0625)), (8, (name, 0.25)), (12, (name, 0.5))]
    # A row takes gen + 10 s (1 + 1 + 0.5 + 3 + 4.5); the 57 s of testing are apart: q = 12 / (20 + 22 + 18) = 0.2.
    assert [update.seconds for update in run.updates] == [{"generate": gen, "train": 10.0} for gen in (10.0, 12.0, 8.0)]
    assert run.updates[1].apart_s == {"evaluate": 57.0}
    # 0.010 in units of 1e-4; mini-batches of 2 prompts: two optimizer steps a row; 300.5 tokens x 4 responses.
    assert run.updates[0].lr == pytest.approx(1e-6) and (run.lr, run.critic_lr) == (1e-6, 1e-5)
    assert run.updates[0].optimizer_steps == 2 and run.updates[0].tokens == 1202
    assert run.updates[1].metrics["grad/actor_norm"] == 24.0
    assert run.axes["mini_batch_size"] == 2 and run.axes["max_response_length"] == 512
    assert run.curves == (name, "critic/score/mean", "critic/rewards/mean")


def test_a_validation_row_that_shares_step_0_is_of_the_policy_before_it(tmp_path: Path) -> None:
    rows = [f"{TASK}step:0 - val/test_score/openai/gsm8k:0.100", old_row(0, 10.0, 0.2), old_row(1, 10.0, 0.3)]
    run = old_log(tmp_path / "a.log", rows)
    assert [one.samples_trained for one in run.evals] == [0]
    assert [update.samples_before for update in run.updates] == [0, 4]


def test_a_last_validation_row_is_of_the_last_policy_whatever_its_step(tmp_path: Path) -> None:
    # Counted from 0 its step is the number of rows, counted from 1 it is one more: neither trains anything.
    last = f"{TASK}step:2 - val/test_score/openai/gsm8k:0.400"
    run = old_log(tmp_path / "a.log", [old_row(0, 10.0, 0.2), old_row(1, 10.0, 0.3), last])
    assert [one.samples_trained for one in run.evals] == [8]
    lines = VerlRun(num_prompts=2, group_size=2, steps=2).console(tmp_path / "b.log").read_text()
    (tmp_path / "b.log").write_text(f"{lines}{TASK}step:3 - val-core/openai/gsm8k/acc/mean@1:0.4\n")
    (run,) = verl.read(tmp_path / "b.log", Options())
    assert [one.samples_trained for one in run.evals] == [0, 8]


def test_the_last_attempt_counts_from_where_it_began(tmp_path: Path) -> None:
    # Three rows, a validation after the third; the second attempt goes back to step 1 and reaches step 1 only.
    validated = "val/test_score/openai/gsm8k:0.900 - "
    rows = [old_row(0, 10.0, 0.1), old_row(1, 10.0, 0.2), old_row(2, 10.0, 0.3, validated), old_row(1, 11.0, 0.25)]
    run = old_log(tmp_path / "a.log", rows)
    assert [(u.step, u.scores["critic/score/mean"]) for u in run.updates] == [(1, 0.1), (2, 0.25)]
    assert run.evals == ()
    assert "2 rows were made again by a later attempt; the later ones count." in run.assumptions


def test_a_row_cut_in_its_middle_keeps_what_is_whole(tmp_path: Path) -> None:
    # 20 whole rows make the cut one stand out; its last number may lack digits, its phases are not all there.
    rows = [old_row(step, 10.0, 0.01 * step) for step in range(21)]
    whole = rows[7]
    rows[7] = whole[: whole.index("timing/update_actor") + len("timing/update_actor:4.")]
    run = old_log(tmp_path / "a.log", rows)
    cut = run.updates[7]
    assert cut.seconds == {} and cut.scores == {} and cut.metrics["grad/critic_norm"] == 950.052
    assert run.updates[8].seconds == {"generate": 10.0, "train": 10.0}
    assert "1 cut row counts without its last number and its seconds." in run.assumptions


def test_missing_rows_leave_their_samples_counted(tmp_path: Path) -> None:
    run = old_log(tmp_path / "a.log", [old_row(0, 10.0, 0.1), old_row(3, 10.0, 0.2)])
    assert [(u.step, u.samples_before, u.samples_trained) for u in run.updates] == [(1, 0, 4), (4, 12, 16)]
    assert any(text.startswith("2 rows are missing") for text in run.assumptions)


def test_a_new_console_log_says_all_of_itself(tmp_path: Path) -> None:
    truth = VerlRun(num_prompts=4, group_size=8, steps=10, test_freq=5, step_s=2.0, mini_batch=2, lr=2e-6)
    (run,) = verl.read(truth.console(tmp_path / "grpo.log"), Options())
    assert (run.num_prompts, run.group_size, run.algorithm, run.lr, run.critic_lr) == (4, 8, "grpo", 2e-6, None)
    assert [one.samples_trained for one in run.evals] == [0, 160, 320]
    assert [update.samples_trained for update in run.updates] == [32 * step for step in range(1, 11)]
    assert run.updates[0].optimizer_steps == 2 and run.axes["mini_batch_size"] == 16
    assert run.curves[:2] == ("val-core/openai/gsm8k/acc/mean@1", "critic/score/mean")
    # generate_sequences lies within gen; what is left of the step beyond 0.99 of it is undivided; testing is on top.
    logged = [row["timing_s/step"] for _, row in truth.rows() if "timing_s/step" in row]
    for update, step_s in zip(run.updates, logged, strict=True):
        shares = {"generate": 0.6, "reward": 0.01, "train": 0.38, "undivided": 0.01}
        assert update.seconds == pytest.approx({name: share * step_s for name, share in shares.items()})
    assert run.updates[4].apart_s == {"evaluate": 7.0}


def test_the_file_logger_gives_the_same_run_once_its_batch_is_told(tmp_path: Path) -> None:
    truth = VerlRun(num_prompts=4, group_size=8, steps=10)
    (console,) = verl.read(truth.console(tmp_path / "a.log"), Options())
    (file,) = verl.read(truth.jsonl(tmp_path / "a.jsonl"), Options(num_prompts=4, group_size=8))
    assert (file.updates, file.evals) == (tuple(replace(u, optimizer_steps=1) for u in console.updates), console.evals)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            Options(),
            "does not say num_prompts and group_size, .* hold 32 responses .*; give --num-prompts and --group-size",
        ),
        (
            Options(num_prompts=32, group_size=8),
            "32 prompts x 8 responses are 256 a row, but its rows hold 32 responses",
        ),
        (Options(num_prompts=4, group_size=1), "4 prompts x 1 responses are 4 a row, but its rows hold 32 responses"),
    ],
)
def test_wrong_or_missing_units_are_one_sentence(tmp_path: Path, said: Options, message: str) -> None:
    log = VerlRun(num_prompts=4, group_size=8).jsonl(tmp_path / "a.jsonl")
    with pytest.raises(InputError, match=message):
        verl.read(log, said)


def test_one_of_the_units_follows_from_the_other(tmp_path: Path) -> None:
    log = VerlRun(num_prompts=4, group_size=8).jsonl(tmp_path / "a.jsonl")
    for said in (Options(num_prompts=4), Options(group_size=8)):
        (run,) = verl.read(log, said)
        assert (run.num_prompts, run.group_size) == (4, 8)
        assert any("32 responses by their token counts" in text for text in run.assumptions)


def test_an_option_that_contradicts_the_log_is_refused(tmp_path: Path) -> None:
    log = VerlRun(num_prompts=4, group_size=8).console(tmp_path / "a.log")
    with pytest.raises(InputError, match="--num-prompts 32: .* itself says num_prompts = 4"):
        verl.read(log, Options(num_prompts=32))


def test_checkpoints_and_evaluation_within_the_step_time_do_not_count(tmp_path: Path) -> None:
    """A step of 2,506.9 s that held 2,322.5 s of checkpoint and 43.9 s of evaluation: 5,120 samples at 36.4 a second."""
    phases = {"timing_s/gen": 90.0, "timing_s/old_log_prob": 10.0, "timing_s/update_actor": 40.0}
    rows = [{**phases, "timing_s/step": 140.5} for _ in range(3)]
    rows[1] |= {"timing_s/step": 2506.9, "timing_s/save_checkpoint": 2322.5, "timing_s/testing": 43.9}
    log = tmp_path / "a.jsonl"
    lines = [{"step": step, "data": {"critic/score/mean": 0.1, **row}} for step, row in enumerate(rows, 1)]
    log.write_text("\n".join(map(json.dumps, lines)))
    (run,) = verl.read(log, Options(num_prompts=640, group_size=8))
    assert sum(run.updates[1].seconds.values()) == pytest.approx(140.5)
    assert 5120 / sum(run.updates[1].seconds.values()) == pytest.approx(36.44, abs=0.005)
    assert run.updates[1].apart_s == {"evaluate": 43.9, "checkpoint": 2322.5}


def test_evaluation_on_top_of_the_step_time_is_not_taken_off(tmp_path: Path) -> None:
    phases = {"timing_s/gen": 90.0, "timing_s/update_actor": 40.0, "timing_s/step": 131.0}
    lines = [{"step": 1, "data": phases}, {"step": 2, "data": {**phases, "timing_s/testing": 100.0}}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (run,) = verl.read(tmp_path / "a.jsonl", Options(num_prompts=2, group_size=2))
    assert [sum(update.seconds.values()) for update in run.updates] == [131.0, 131.0]


def test_phases_that_overlap_leave_the_step_whole(tmp_path: Path) -> None:
    data = {"timing_s/gen": 90.0, "timing_s/update_actor": 40.0, "timing_s/step": 100.0}
    (tmp_path / "a.jsonl").write_text(json.dumps({"step": 1, "data": data}))
    (run,) = verl.read(tmp_path / "a.jsonl", Options(num_prompts=2, group_size=2))
    assert run.updates[0].seconds == {"undivided": 100.0}


def test_groups_that_were_filtered_count_as_generated(tmp_path: Path) -> None:
    # Batches of 6 prompts are sampled until 4 are kept: 2 + 1 of them are 72 and 48 responses for 32 trained each.
    log = VerlRun(num_prompts=4, group_size=8, steps=2).console(tmp_path / "a.log")
    text = log.read_text().replace("'data': {", "'data': {'gen_batch_size': 6, ")
    for step, batches in ((1, 2), (2, 1)):
        text = text.replace(f"step:{step} - ", f"step:{step} - train/num_gen_batches:{batches} - ", 1)
    log.write_text(text)
    (run,) = verl.read(log, Options())
    assert [u.samples_trained for u in run.updates] == [32, 64]
    assert [u.samples_generated for u in run.updates] == [96, 144]


def test_the_batch_is_read_off_the_command_line_where_no_configuration_is_printed(tmp_path: Path) -> None:
    log = VerlRun(num_prompts=4, group_size=8, steps=2).console(tmp_path / "a.log")
    rows = [line for line in log.read_text().splitlines() if "step:" in line]
    command = (
        "+ python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=4 data.seed=3 "
        "actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.optim.lr=3e-6 'trainer.logger=[\"console\"]'"
    )
    log.write_text("\n".join([command, *rows]))
    (run,) = verl.read(log, Options())
    assert (run.num_prompts, run.group_size, run.lr, run.seed, run.algorithm) == (4, 8, 3e-6, 3, "grpo")


def test_a_progress_bar_and_another_process_on_the_same_line_hide_no_row(tmp_path: Path) -> None:
    log = VerlRun(num_prompts=4, group_size=8, steps=3).console(tmp_path / "a.log")
    lines = log.read_text().split("\n")
    first, second, third = (next(i for i, line in enumerate(lines) if f"step:{s} - act" in line) for s in (1, 2, 3))
    bar = "Training Progress:   0%|          | 0/3 [00:00<?, ?it/s]"
    lines[first] = f"{bar}\r{bar}{lines[first]}"
    lines[second] += f"(WorkerDict pid=9) {bar}"
    lines[third] += bar
    log.write_text("\n".join(lines))
    (run,) = verl.read(log, Options())
    assert [len(update.metrics) for update in run.updates] == [5, 5, 5]
    assert [len(update.seconds) for update in run.updates] == [4, 4, 4]


def test_names_that_contain_step_are_no_rows(tmp_path: Path) -> None:
    log = VerlRun(num_prompts=4, group_size=8, steps=1).console(tmp_path / "a.log")
    log.write_text(log.read_text() + "saved to /ckpt/global_step:9 - actor/x:1\ntiming_s/step:1.25 - critic/x:2\n")
    (run,) = verl.read(log, Options())
    assert len(run.updates) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "has no rows of verl"),
        ("step:0 - val-core/a/acc/mean@1:0.5\n", "has no training rows of verl, only 1 of validation"),
    ],
)
def test_an_empty_history_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.log").write_text(text)
    with pytest.raises(InputError, match=message):
        verl.read(tmp_path / "a.log", Options(num_prompts=1, group_size=1))


def test_what_verl_logs_look_like(tmp_path: Path) -> None:
    truth = VerlRun(steps=1)
    assert verl.looks_like(truth.console(tmp_path / "a.log")) and verl.looks_like(truth.jsonl(tmp_path / "b.jsonl"))
    (tmp_path / "c.log").write_text("{'loss': 0.1, 'step': 3}\nstep:1 - loss:3\n")
    (tmp_path / "d.bin").write_bytes(bytes(range(256)))
    assert not any(verl.looks_like(tmp_path / name) for name in ("c.log", "d.bin", ".", "missing"))
    assert verl.speaks(["timing_s/gen"]) and not verl.speaks(["train/reward", "loss"])
