"""Engines in processes of their own: one engine to the trial, whatever their number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from harness.config import TrialConfig
from harness.members import Members, Shared, call_all
from harness.models import load_tokenizer
from harness.rollout.engine import RolloutEngine, Sampling
from harness.rollout.transformers import TransformersEngine
from harness.tasks import make_task
from harness.types import Prompt, RolloutGroup
from harness.warm_start import load_policy

CHUNK_BYTES = 32 * 1024**2
Weights = Iterable[tuple[str, torch.Tensor]]


class EngineReplicas:
    """A RolloutEngine over members that each hold an EngineProcess.

    Prompts are dealt out in consecutive runs. Draws depend on the prompt and the response alone, so replicas never
    repeat one another, and their number changes no response of an engine that keeps to that.
    """

    def __init__(self, members: Members) -> None:
        self.members = members
        self.weights_version = 0

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RolloutGroup]:
        runs = [
            prompts[run[0] : run[-1] + 1]
            for run in np.array_split(np.arange(len(prompts)), self.members.size)
            if len(run)
        ]
        answers = [self.members.start(member, "generate", run, sampling) for member, run in enumerate(runs)]
        return [group for answer in answers for group in answer.result()]

    def update_weights(self, weights: Weights, version: int) -> None:
        chunks = [self.members.share(chunk) for chunk in in_chunks(weights, CHUNK_BYTES)]
        call_all(self.members, "update_weights", chunks, version)
        self.weights_version = version


class EngineProcess:
    """The engine of one process, with weights of its own, built from the trial's configuration."""

    def __init__(self, config: TrialConfig, results_dir: Path) -> None:
        self.engine = make_engine(config, results_dir)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RolloutGroup]:
        return self.engine.generate(prompts, sampling)

    def update_weights(self, chunks: Sequence[Shared], version: int) -> None:
        """Take the weights up chunk by chunk."""
        self.engine.update_weights((pair for chunk in chunks for pair in chunk.get()), version)


def make_engine(config: TrialConfig, results_dir: Path) -> RolloutEngine:
    """An engine that shares nothing with a trainer."""
    tokenizer = load_tokenizer(config.model, make_task(config.task).alphabet)
    model = load_policy(config, tokenizer, results_dir).requires_grad_(False)
    return TransformersEngine(model, tokenizer, config.batch.gen_batch)


def in_chunks(weights: Weights, most_bytes: int) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Copies on the CPU in runs of at most `most_bytes`; a larger tensor comes alone.

    >>> pairs = [(name, torch.zeros(4)) for name in "abc"]  # 16 bytes each
    >>> [[name for name, _ in chunk] for chunk in in_chunks(pairs, 40)]
    [['a', 'b'], ['c']]
    """
    chunk: list[tuple[str, torch.Tensor]] = []
    held = 0
    for name, weight in weights:
        if chunk and held + weight.nbytes > most_bytes:
            yield chunk
            chunk, held = [], 0
        chunk.append((name, weight.detach().to("cpu", copy=True)))
        held += weight.nbytes
    if chunk:
        yield chunk
