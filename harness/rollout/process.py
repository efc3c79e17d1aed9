"""One engine in a process of its own: what the members of EngineReplicas hold."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.config import TrialConfig
from harness.members import Shared
from harness.memory import MemoryWatch, Room
from harness.models import load_tokenizer
from harness.rollout.engine import Sampling, SteppingEngine
from harness.rollout.occupancy import Occupancy
from harness.rollout.stream import Stream, StreamSettings, StreamState
from harness.rollout.transformers import TransformersEngine
from harness.rollout.vllm import VllmEngine
from harness.tasks import make_task
from harness.types import Prompt, RolloutGroup
from harness.warm_start import load_policy


class EngineProcess:
    """The engine of one process, with weights of its own, built from the trial's configuration.

    Once a stream is opened a thread moves it on between the calls: each call waits for the step that is running.
    """

    def __init__(self, config: TrialConfig, results_dir: Path) -> None:
        self.config = config
        self.task = make_task(config.task)
        self.engine = make_engine(config, results_dir)
        self.lock = threading.Condition()
        self.calls_waiting = 0
        self.stream: Stream | None = None
        self.watch: MemoryWatch | None = None
        self.paused = False
        self.closed = False
        self.error: Exception | None = None

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> tuple[list[RolloutGroup], Occupancy]:
        """One group for each prompt, in order, and how full the engine was."""
        with self._turn():
            return self.engine.generate(prompts, sampling), self.engine.occupancy

    def update_weights(self, chunks: Sequence[Shared], version: int) -> None:
        """Take the weights up chunk by chunk."""
        with self._turn():
            self.engine.update_weights((pair for chunk in chunks for pair in chunk.get()), version)

    def open_stream(self, settings: StreamSettings) -> None:
        """Begin to generate without end."""
        self.stream = Stream(self.engine, self._train_prompt, settings)
        threading.Thread(target=self._run, name="stream", daemon=True).start()

    def collect(self, most: int | None, wait_s: float) -> tuple[list[RolloutGroup], StreamState]:
        """At most so many finished groups, waiting a little for the first, and the state without them."""
        with self._turn():
            assert self.stream is not None
            self.lock.wait_for(lambda: self.error or (self.stream and self.stream.finished), wait_s)
            if self.error is not None:
                raise self.error
            groups = self.stream.take(most)
            self.lock.notify_all()
            return groups, self.stream.state()

    def watch_memory(self) -> None:
        """From now on `room` goes by the peak of what the engine takes."""
        with self._turn():
            self.watch = MemoryWatch()

    def room(self, in_flight: int) -> Room:
        """Responses that fit here at once, after work on so many."""
        with self._turn():
            assert self.watch is not None
            return self.engine.room() or self.watch.room(in_flight)

    def restart(self) -> None:
        """Start every unfinished response over."""
        with self._turn():
            assert self.stream is not None
            self.stream.flight.restart()

    def pause(self) -> None:
        """Stand still until resumed."""
        with self._turn():
            self.paused = True

    def resume(self) -> None:
        """Go on."""
        with self._turn():
            self.paused = False
            self.lock.notify_all()

    def close(self) -> None:
        """Stop generating."""
        with self._turn():
            self.closed = True
            self.lock.notify_all()

    def _train_prompt(self, index: int) -> Prompt:
        return self.task.train_prompt(self.config.seed, index)

    def _run(self) -> None:
        assert self.stream is not None
        while self.error is None and not self.closed:
            with self.lock:
                self.lock.wait_for(lambda: self.closed or not self.paused)
                try:
                    moved = self.stream.advance()
                except Exception as error:  # the trial meets it at its next call
                    self.error = error
                    moved = True
                if self.stream.finished or self.error:
                    self.lock.notify_all()
                if not moved and not self.closed:
                    self.lock.wait()  # for room in the queue
            while self.calls_waiting:  # a call comes before the next step
                time.sleep(1e-4)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        self.calls_waiting += 1
        with self.lock:
            self.calls_waiting -= 1
            yield


def make_engine(config: TrialConfig, results_dir: Path) -> SteppingEngine:
    """An engine that shares nothing with a trainer, and the responses in flight with the trial's other engines."""
    task, execution = make_task(config.task), config.execution
    tokenizer = load_tokenizer(config.model, task.alphabet)
    model: Any = load_policy(config, tokenizer, results_dir).requires_grad_(False)
    if execution.engine == "transformers":
        return TransformersEngine(model, tokenizer, config.batch.gen_batch)
    in_flight = -(-config.batch_shape.gen_batch // execution.num_engines)
    limit = config.sampling.max_response_tokens or task.max_response_tokens
    assert limit is not None  # the configuration is refused where neither says it
    return VllmEngine(model.to("cpu"), tokenizer, config.model, execution, in_flight, limit)
