"""Generation without end: responses stay in flight between calls, whole groups come out as they finish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harness.rollout.engine import Sampling, SteppingEngine
from harness.rollout.occupancy import Meter, Occupancy
from harness.types import Prompt, Rollout, RolloutGroup

ADMIT_ONE_IN = 8
"""New prompts join once so large a share of the places is free: joining costs a forward pass of its own."""


@dataclass(frozen=True)
class Indices:
    """Prompts still to begin: those to generate again, in order, then every `stride`-th from `new` on."""

    again: tuple[int, ...]
    new: int
    stride: int

    @property
    def next(self) -> int:
        return self.again[0] if self.again else self.new

    @property
    def rest(self) -> Indices:
        """What is left without the next.

        >>> Indices((3,), 8, 2).rest, Indices((), 8, 2).rest.next
        (Indices(again=(), new=8, stride=2), 10)
        """
        return replace(self, again=self.again[1:]) if self.again else replace(self, new=self.new + self.stride)


def deal(again: Sequence[int], first: int, members: int) -> list[Indices]:
    """The prompts of each of several streams: in turn those to generate again, then the new ones from `first` on.

    >>> deal([5, 3, 6], 8, 2)
    [Indices(again=(3, 6), new=8, stride=2), Indices(again=(5,), new=9, stride=2)]
    """
    return [Indices(tuple(sorted(again)[member::members]), first + member, members) for member in range(members)]


@dataclass(frozen=True)
class StreamState:
    """What a stream has done so far and holds now.

    begun: responses ever put in flight. outstanding: prompts whose responses are in flight or wait to be taken.
    indices: prompts to come. lowest_unfinished: no prompt below this index is still to finish. occupancy: of all steps.
    tokens_discarded: of responses that were started over.
    """

    begun: int
    outstanding: tuple[int, ...]
    indices: Indices
    lowest_unfinished: int
    occupancy: Occupancy
    tokens_discarded: int = 0


@dataclass
class _Group:
    prompt: Prompt
    rollouts: dict[int, Rollout] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamSettings:
    """What a stream generates and how far it may run ahead; sizes count responses.

    Up to `capacity` are in flight. With `most_waiting` or more of finished groups not taken yet nothing new begins, nor
    at an index more than `window` prompts past the lowest that is unfinished (None: no such limit). So a slow trainer
    finds a bounded queue, and a slow response does not let the others run away from it. A response that ended makes
    room for another even while its group waits for the rest.
    """

    sampling: Sampling
    indices: Indices
    capacity: int
    most_waiting: int
    window: int | None


class Stream:
    """Keeps responses in flight over the prompts to come, and their groups together."""

    def __init__(self, engine: SteppingEngine, prompt_at: Callable[[int], Prompt], settings: StreamSettings) -> None:
        self.flight = engine.open_flight(settings.sampling, settings.capacity)
        self.prompt_at = prompt_at
        self.settings = settings
        self.indices = settings.indices
        self.group_size = settings.sampling.num_responses
        self.begun = 0
        self.unfinished: dict[int, _Group] = {}
        self.finished: list[RolloutGroup] = []
        self.meter = Meter(settings.capacity)

    def advance(self) -> bool:
        """One more token for everything in flight; False when nothing is, because finished groups wait."""
        self.meter.start()
        self._admit()
        in_flight = self.flight.size
        if not in_flight:
            return False
        arrivals = self.flight.step()
        self.meter.lap(in_flight)
        for arrival in arrivals:
            group = self.unfinished[arrival.prompt_index]
            group.rollouts[arrival.response] = arrival.rollout
            if len(group.rollouts) == self.group_size:
                rollouts = tuple(group.rollouts[response] for response in range(self.group_size))
                self.finished.append(RolloutGroup(group.prompt, arrival.prompt_ids_L, rollouts))
                del self.unfinished[arrival.prompt_index]
        return True

    def take(self, most: int | None = None) -> list[RolloutGroup]:
        """Hand out finished groups, in the order in which they finished."""
        taken, self.finished = self.finished[:most], self.finished[len(self.finished[:most]) :]
        return taken

    def state(self) -> StreamState:
        """Counts as they are now."""
        outstanding = (*self.unfinished, *(group.prompt.index for group in self.finished))
        discarded = self.flight.tokens_discarded
        return StreamState(self.begun, outstanding, self.indices, self._lowest, self.meter.total, discarded)

    @property
    def _lowest(self) -> int:
        return min((*self.unfinished, self.indices.next))

    def _admit(self) -> None:
        """Begin new groups where enough places are free and the queue is short."""
        settings = self.settings
        free = (settings.capacity - self.flight.size) // self.group_size
        least = max(1, settings.capacity // self.group_size // ADMIT_ONE_IN)
        if (free < least and self.flight.size) or len(self.finished) * self.group_size >= settings.most_waiting:
            return
        new: list[Prompt] = []
        while len(new) < free and (settings.window is None or self.indices.next - self._lowest < settings.window):
            prompt = self.prompt_at(self.indices.next)
            self.unfinished[prompt.index] = _Group(prompt)
            new.append(prompt)
            self.indices = self.indices.rest
        if new:
            self.flight.begin(new)
            self.begun += len(new) * self.group_size


def staleness(groups: Sequence[RolloutGroup], version: int, samples_at: Callable[[int], int]) -> dict[str, float]:
    """How old the tokens of a rollout batch are when it is trained on, in updates and in samples.

    version: rollout batches trained on so far; samples_at(v): samples trained on after v of them.
    """
    versions_N = np.concatenate([rollout.versions_T for group in groups for rollout in group.rollouts])
    distinct, counts = np.unique(versions_N, return_counts=True)
    updates = version - distinct
    samples = np.array([samples_at(version) - samples_at(int(v)) for v in distinct])
    return {
        "policy/staleness_updates_mean": float(np.average(updates, weights=counts)),
        "policy/staleness_updates_max": float(updates.max()),
        "policy/staleness_samples_mean": float(np.average(samples, weights=counts)),
        "policy/staleness_samples_max": float(samples.max()),
    }
