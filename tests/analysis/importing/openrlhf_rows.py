"""Rows as OpenRLHF's trainer gives them to its loggers: 8 prompts x 4, an evaluation every second step."""

from __future__ import annotations

from collections.abc import Iterator

PHASES = {
    "timing/generation": 4.5,
    "timing/make_experience": 1.0,
    "timing/ppo_train": 2.0,
    "timing/broadcast": 0.5,
}


def rows(first: int, last: int, bonus: float = 0.0) -> Iterator[tuple[int, str, dict[str, float]]]:
    """(global step, train or eval, metrics): the reward of step s is s/10, in an evaluation s/10 + 0.05."""
    for step in range(first, last + 1):
        status = {
            "policy_loss": 0.01,
            "actor_lr": 1e-6,
            "reward": 0.9 * step / 10 + bonus,
            "return": 0.5,
            "response_length": 48.0,
            "kl": 0.001,
            "ppo_clip_ratio": 0.02,
            **PHASES,
            "rollout/reward_mean": step / 10 + bonus,
            "rollout/response_length_mean": 50.0,
            "rollout/truncated_rate": 0.125,
            "rollout/num_samples": 32.0,
            "timing/step_total": sum(PHASES.values()),
        }
        yield step, "train", status
        if step % 2 == 0:
            yield step, "eval", {"eval_gsm8k_pass1": step / 10 + 0.05 + bonus, "eval_num_samples": 128.0}
