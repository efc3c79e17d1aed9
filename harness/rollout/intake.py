"""The trial's end of its streams: which finished groups are trained on next, and where every response is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from harness.execution import StreamingConfig
from harness.rollout.occupancy import Occupancy, beside
from harness.rollout.stream import Stream, StreamState, staleness
from harness.types import RolloutGroup


class Source(Protocol):
    """Streams, here or in other processes."""

    @property
    def states(self) -> Sequence[StreamState]:
        """Of each stream, as it was at `seen_s`."""

    @property
    def seen_s(self) -> float:
        """When the states were what they are, by time.perf_counter."""

    def poll(self, most: int | None) -> list[RolloutGroup]:
        """What has finished, in the order of finishing, at most so many groups of each stream; may be nothing yet."""

    def move(self, steps: int) -> None:
        """What a stream of this process does while the trial trains; others move by themselves."""

    def restart(self) -> None:
        """Start every unfinished response over."""

    def pause(self) -> None:
        """Stand still until resumed: nothing is generated beside evaluation and checkpoints."""

    def resume(self) -> None:
        """Go on."""


class LocalSource:
    """One stream in this process, under a logical clock: it moves by one token at each poll, and by so many as told."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    @property
    def states(self) -> list[StreamState]:
        return [self.stream.state()]

    @property
    def seen_s(self) -> float:
        return time.perf_counter()

    def poll(self, most: int | None) -> list[RolloutGroup]:
        self.move(1)
        return self.stream.take(most)

    def move(self, steps: int) -> None:
        for _ in range(steps):
            self.stream.advance()

    def restart(self) -> None:
        self.stream.flight.restart()

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass


class Intake:
    """Finished groups on their way into rollout batches; every response is counted until it is trained on or dropped.

    Once a group is older than max_staleness_updates, it is dropped: the oldest of its tokens decides.
    """

    def __init__(self, source: Source, config: StreamingConfig, group_size: int) -> None:
        self.source = source
        self.config = config
        self.group_size = group_size
        self.waiting: list[RolloutGroup] = []
        self.samples_at: dict[int, int] = {}
        self.begun_before = self.lost = 0
        self.noted_s, self.noted_discarded = time.perf_counter(), 0
        self.noted_occupancy = Occupancy(0)
        self.num_taken = self.num_overtaking = 0

    def begin(self, version: int, samples_trained: int, begun_before: int, lost: int) -> None:
        """What the counters stood at when the streams were opened, and how many responses an interruption lost."""
        self.samples_at = {version: samples_trained}
        self.begun_before = begun_before
        self.lost = lost

    def take(self, num_groups: int, version: int) -> tuple[list[RolloutGroup], int]:
        """The next groups to train on, waiting for them, and how many responses were lost or dropped on the way."""
        taken: list[RolloutGroup] = []
        dropped, self.lost = self.lost, 0
        while True:
            dropped += self._drop_old(version)
            ready = self._ready()[: num_groups - len(taken)]
            self._note_order(ready)
            taken += ready
            gone = {group.prompt.index for group in ready}
            self.waiting = [group for group in self.waiting if group.prompt.index not in gone]
            if len(taken) == num_groups:
                return taken, dropped
            # Out of order everything has to come here to be put into it.
            most = num_groups - len(taken) if self.config.order == "arrival" else None
            self.waiting += self.source.poll(most)

    def while_training(self) -> None:
        """Under a logical clock: what an engine beside the trainer would have done meanwhile."""
        self.source.move(self.config.steps_while_training)

    def updated(self, version: int, samples_trained: int) -> None:
        """The weights of this version are in the engine: unfinished responses go on with them, or start over."""
        self.samples_at[version] = samples_trained
        if self.config.unfinished == "restart":
            self.source.restart()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is generated meanwhile: what is left out of q must not fill the queue either."""
        self.source.pause()
        started_s = time.perf_counter()
        yield
        self.source.resume()
        self.noted_s += time.perf_counter() - started_s

    def usage(self) -> dict[str, float]:
        """How full the streams were, and tokens discarded, from where the last call ended to when they were last seen.

        Pauses are left out. What streams did since they were last seen comes with the next call, time and all.
        """
        occupancy = beside(state.occupancy for state in self.source.states)
        discarded = sum(state.tokens_discarded for state in self.source.states)
        spent_s, found = self.source.seen_s - self.noted_s, {"places": float(occupancy.places)}
        if spent_s > 0:
            found = occupancy.since(self.noted_occupancy).as_json(spent_s)
            self.noted_s, self.noted_occupancy = self.noted_s + spent_s, occupancy
        found["tokens_discarded"] = discarded - self.noted_discarded
        self.noted_discarded = discarded
        return found

    @property
    def samples_generated(self) -> int:
        """Responses ever begun."""
        return self.begun_before + sum(state.begun for state in self.source.states)

    @property
    def samples_in_flight(self) -> int:
        """Responses begun, neither trained on nor dropped yet."""
        return self.group_size * len(self.outstanding)

    @property
    def outstanding(self) -> list[int]:
        """Prompts of the responses in flight."""
        in_streams = [index for state in self.source.states for index in state.outstanding]
        return sorted(in_streams + [group.prompt.index for group in self.waiting])

    def to_generate(self) -> tuple[list[int], int]:
        """(prompts that were left out or begun and not trained on, first prompt that was never reached)."""
        indices = [state.indices for state in self.source.states]
        first = max(each.new for each in indices)
        left_out = [index for each in indices for index in (*each.again, *range(each.new, first, each.stride))]
        return sorted(self.outstanding + left_out), first

    def metrics(self, groups: Sequence[RolloutGroup], version: int) -> dict[str, float]:
        """Age of the tokens that are trained on next; share of the groups so far that overtook an earlier one."""
        overtaking = {"stream/overtaking_frac": self.num_overtaking / max(self.num_taken, 1)}
        return staleness(groups, version, self.samples_at.__getitem__) | overtaking

    def _ready(self) -> list[RolloutGroup]:
        if self.config.order == "arrival":
            return self.waiting
        lowest = min(state.lowest_unfinished for state in self.source.states)
        ordered = sorted(self.waiting, key=lambda group: group.prompt.index)
        return [group for group in ordered if group.prompt.index < lowest]

    def _note_order(self, taken: Sequence[RolloutGroup]) -> None:
        if taken:
            left = set(self.outstanding) - {group.prompt.index for group in taken}
            lowest = min(left, default=max(group.prompt.index for group in taken))
            self.num_taken += len(taken)
            self.num_overtaking += sum(group.prompt.index > lowest for group in taken)

    def _drop_old(self, version: int) -> int:
        """Drop what is older than allowed; returns the number of responses dropped."""
        most = self.config.max_staleness_updates
        if most is None:
            return 0
        fresh = [
            group
            for group in self.waiting
            if version - min(int(rollout.versions_T.min()) for rollout in group.rollouts) <= most
        ]
        dropped = len(self.waiting) - len(fresh)
        self.waiting = fresh
        return dropped * self.group_size
