"""Engines in processes of their own: one engine to the trial, whatever their number."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from harness.members import Members, call_all, call_each
from harness.rollout.engine import Sampling
from harness.rollout.occupancy import Occupancy, beside
from harness.rollout.stream import StreamSettings, StreamState
from harness.types import Prompt, RolloutGroup

CHUNK_BYTES = 32 * 1024**2
POLL_S = 0.05
Weights = Iterable[tuple[str, torch.Tensor]]


class EngineReplicas:
    """A RolloutEngine over members that each hold an EngineProcess.

    Prompts are dealt out in consecutive runs. Draws depend on the prompt and the response alone, so replicas never
    repeat one another, and their number changes no response of an engine that keeps to that.
    """

    def __init__(self, members: Members) -> None:
        self.members = members
        self.weights_version = 0
        self.occupancy = Occupancy(0)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RolloutGroup]:
        runs = [
            prompts[run[0] : run[-1] + 1]
            for run in np.array_split(np.arange(len(prompts)), self.members.size)
            if len(run)
        ]
        answers = [self.members.start(member, "generate", run, sampling) for member, run in enumerate(runs)]
        found = [answer.result() for answer in answers]
        self.occupancy = beside(occupancy for _, occupancy in found)
        return [group for groups, _ in found for group in groups]

    def update_weights(self, weights: Weights, version: int) -> None:
        chunks = [self.members.share(chunk) for chunk in in_chunks(weights, CHUNK_BYTES)]
        call_all(self.members, "update_weights", chunks, version)
        self.weights_version = version


class ReplicaSource:
    """The streams of all replicas (see harness.rollout.intake.Source). They run on while the trial trains."""

    def __init__(self, members: Members, settings: Sequence[StreamSettings]) -> None:
        self.members = members
        call_each(members, "open_stream", [(each,) for each in settings])
        self.states: list[StreamState] = []
        self.seen_s = 0.0
        self.poll(0)

    def poll(self, most: int | None) -> list[RolloutGroup]:
        finished: list[RolloutGroup] = []
        self.states = []
        for groups, state in call_all(self.members, "collect", most, POLL_S if most != 0 else 0.0):
            finished += groups
            self.states.append(state)
        self.seen_s = time.perf_counter()
        return finished

    def move(self, steps: int) -> None:
        pass

    def restart(self) -> None:
        call_all(self.members, "restart")

    def pause(self) -> None:
        call_all(self.members, "pause")

    def resume(self) -> None:
        call_all(self.members, "resume")


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
