"""A branch: a trial that starts from a checkpoint of another one and goes on with its own batch and rates."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from harness.config import BranchConfig, TrialConfig
from harness.errors import InputError
from harness.explain import explain
from harness.moments import moved
from harness.parts import Parts
from harness.run_dir import RunDir, read_json
from harness.update import Progress

# What a branch has in common with its parent; all else may be its own.
COMMON = ("model", "task", "algorithm", "sampling", "evaluation")


def begin_branch(parts: Parts, branch: BranchConfig, results_dir: Path) -> Progress:
    """Take up the parent's checkpoint; returns its counters, with a clock that starts anew.

    InputError where there is no such checkpoint, or the parent learned something else.
    """
    run = RunDir(results_dir / branch.trial)
    parent = _parent_config(run, branch)
    _require_common(parts.config, parent, branch)
    checkpoint = run.read_checkpoint(branch.at_samples)
    if checkpoint is None:
        kept = ", ".join(f"{samples:,}" for samples in run.checkpoints_at()) or "none"
        raise InputError(
            f"branch.at_samples: {branch.at_samples}; {branch.trial} has no whole checkpoint there, needs one of "
            f"{kept} (execution.checkpoint_every_samples and checkpoints_kept make more)"
        )
    step = parent.responses_per_step
    factor = parts.config.responses_per_step / step
    for name, optimizer in (("trainer", parts.config.optimizer), ("critic", parts.config.critic_optimizer)):
        if optimizer is not None:
            adam = checkpoint[name]["optimizer"]
            adam = moved(adam, optimizer, branch.moments, factor, step, branch.noise_scale)
            checkpoint[name] = {**checkpoint[name], "optimizer": adam}
    parts.load_state(checkpoint)
    progress = Progress(**checkpoint["progress"])
    progress.wall_s, progress.first_rollout_batch = 0.0, progress.rollout_batches
    return progress


def _parent_config(run: RunDir, branch: BranchConfig) -> TrialConfig:
    content = read_json(run.path / "config.json")
    if content is None:
        raise InputError(f"branch.trial: {branch.trial} is no trial of this results folder; needs one that has run")
    try:
        return TrialConfig.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{run.path / 'config.json'}: {explain(error, TrialConfig)}") from None


def _require_common(config: TrialConfig, parent: TrialConfig, branch: BranchConfig) -> None:
    pairs = [(name, getattr(config, name), getattr(parent, name)) for name in COMMON]
    pairs += [
        ("optimizer.name", config.optimizer.name, parent.optimizer.name),
        ("execution.mode", config.execution.mode, parent.execution.mode),
    ]
    for name, own, of_parent in pairs:
        if own != of_parent:
            raise InputError(
                f"branch.trial: {branch.trial} has another {name}; a branch goes on with that of its parent"
            )
