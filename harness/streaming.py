"""Opens the streams of a trial that generates while it trains."""

from __future__ import annotations

from harness.config import TrialConfig
from harness.parts import Parts
from harness.rollout.engine import Sampling
from harness.rollout.intake import Intake, LocalSource, Source
from harness.rollout.replicas import EngineReplicas, ReplicaSource
from harness.rollout.stream import Indices, Stream, StreamSettings, deal
from harness.rollout.transformers import TransformersEngine
from harness.update import Progress


def open_intake(parts: Parts, progress: Progress) -> Intake | None:
    """The streams of the trial from where it stands; None in the mode synchronous.

    What was in flight when a checkpoint was written is lost: dropped in the next rollout batch, and generated again.
    """
    config = parts.config
    if config.execution.mode == "synchronous":
        return None
    members = max(1, config.execution.num_engines)
    settings = [
        stream_settings(config, parts.train_sampling(), indices, member, members)
        for member, indices in enumerate(deal(progress.prompts_again, progress.prompts_used, members))
    ]
    source: Source
    if isinstance(parts.engine, EngineReplicas):
        source = ReplicaSource(parts.engine.members, settings)
    else:
        assert isinstance(parts.engine, TransformersEngine)
        task, seed = parts.task, config.seed
        source = LocalSource(Stream(parts.engine, lambda index: task.train_prompt(seed, index), settings[0]))
    intake = Intake(source, config.execution.streaming, config.batch.group_size)
    lost = progress.samples_generated - progress.samples_trained - progress.samples_dropped
    intake.begin(progress.rollout_batches, progress.samples_trained, progress.samples_generated, lost)
    return intake


def stream_settings(
    config: TrialConfig, sampling: Sampling, indices: Indices, member: int, members: int
) -> StreamSettings:
    """One member's share of what is in flight and of what may wait, in whole groups."""
    size, shape = sampling.num_responses, config.batch_shape

    def share(total: int) -> int:
        groups = total // size
        return size * max(1, groups // members + (member < groups % members))

    in_order = config.execution.streaming.order == "prompt"
    window = (shape.gen_batch + shape.train_batch) // size if in_order else None
    return StreamSettings(sampling, indices, share(shape.gen_batch), share(shape.train_batch), window)
