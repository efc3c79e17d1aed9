"""Samples/s of our loop and of TRL's GRPOTrainer on the same model, task and batch, side by side.

Both start from one warm-started model folder in float32, see the same prompts in the same order with the
same reward, sample at temperature 1 up to the same length, and take one step of fused Adam for each rollout
batch, with neither KL nor gradient clipping. Each side is a process with one thread; they take turns of equally
many samples (ours, TRL, ours, ...) while the other one waits, and warm-up is not counted.

TRL runs as fast as its settings allow: on the CPU without autocast, no gradient checkpointing (its default),
no dropout, no logging, saving or progress bar, no loader processes, no clipping (and so no gradient norm, which
we compute), no check of the loss for NaN, the library's cached generation for the whole batch at once, and as
many responses in a forward pass as is fastest, which is tried out here. Ours is harness.update.run_update with
the settings of sweeps/default.yaml and its metrics, but as in a timing pass without measuring the gradient's noise,
which takes backward passes that TRL does not make.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from tests.bench.common import NO_NOISE, RESULTS, TRAIN_BATCHES, Table, default_trial, significant, spread

ROUNDS = 5
TURN_SAMPLES = 6144
CHOICE_SAMPLES = 4096
WARM_UP_STEPS = 4
TRL_MICRO = {64: (64,), 256: (64, 256), 1024: (128, 256, 1024)}
NUM_PROMPTS_LISTED = 16384


@dataclass(frozen=True)
class Setup:
    """What a side measures next: B, and for TRL the responses of one forward and backward pass."""

    train_batch: int
    micro: int | None = None


@dataclass(frozen=True)
class Turn:
    """Whole updates, their samples as counted where they are rewarded, the mean reward; seconds also of the processor."""

    samples: int
    seconds: float
    cpu_s: float
    reward: float

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds


class Counter:
    """Samples and rewards since the turn began."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.samples, self.rewards = 0, 0.0
        self.started_s, self.started_cpu_s = time.perf_counter(), time.process_time()

    def add(self, samples: int, rewards: float) -> None:
        self.samples += samples
        self.rewards += rewards

    def turn(self) -> Turn:
        seconds, cpu_s = time.perf_counter() - self.started_s, time.process_time() - self.started_cpu_s
        return Turn(self.samples, seconds, cpu_s, self.rewards / self.samples)


class Side:
    """The parent's end of one process."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def load(self, setup: Setup) -> None:
        self.pipe.send(setup)
        self.pipe.recv()  # warmed up

    def measure(self, samples: int) -> Turn:
        """One turn of at least so many samples."""
        self.pipe.send(samples)
        turn: Turn = self.pipe.recv()
        return turn

    def unload(self) -> None:
        self.pipe.send(None)


@contextmanager
def process(serve: Callable[[Connection, Setup], None]) -> Iterator[Side]:
    """A process that serves one setup after the other."""
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.get_context("spawn").Process(target=_serve_all, args=(theirs, serve))
    worker.start()
    theirs.close()
    try:
        yield Side(ours)
        ours.send(None)
    finally:
        ours.close()
        worker.join(10)
        worker.kill()


def _serve_all(pipe: Connection, serve: Callable[[Connection, Setup], None]) -> None:
    import torch

    torch.set_num_threads(1)
    while (setup := pipe.recv()) is not None:
        serve(pipe, setup)


def serve_ours(pipe: Connection, setup: Setup) -> None:
    """Updates of our loop, a turn at a time."""
    from harness.parts import build_parts
    from harness.update import Progress, run_update

    parts, progress = build_parts(default_trial(setup.train_batch, NO_NOISE).config, RESULTS), Progress()
    for _ in range(WARM_UP_STEPS):
        run_update(parts, progress)
    pipe.send("ready")
    while (samples := pipe.recv()) is not None:
        counter = Counter()
        while counter.samples < samples:
            before = progress.samples_trained
            reward = run_update(parts, progress).metrics["reward/mean"]
            trained = progress.samples_trained - before
            counter.add(trained, trained * reward)
        pipe.send(counter.turn())


def serve_trl(pipe: Connection, setup: Setup) -> None:
    """Steps of GRPOTrainer, a turn at a time: a callback waits for the next turn between two steps."""
    from transformers import PrinterCallback, TrainerCallback

    counter = Counter()

    class Turns(TrainerCallback):
        """Measures from the end of one step to the end of another, so that everything in between counts."""

        samples = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == WARM_UP_STEPS:
                pipe.send("ready")
                self.wait(control)
            elif state.global_step > WARM_UP_STEPS and counter.samples >= self.samples:
                pipe.send(counter.turn())
                self.wait(control)

        def wait(self, control: Any) -> None:
            samples = pipe.recv()
            if samples is None:
                control.should_training_stop = True
            else:
                self.samples = samples
                counter.restart()

    with tempfile.TemporaryDirectory() as folder:
        trainer = _grpo_trainer(setup, counter, folder)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Turns())
        trainer.train()


def _grpo_trainer(setup: Setup, counter: Counter, folder: str) -> Any:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from harness.tasks import make_task
    from harness.warm_start import ensure_warm_start

    config = default_trial(setup.train_batch, NO_NOISE).config
    task = make_task(config.task)
    start = ensure_warm_start(config, RESULTS)
    assert start is not None
    prompts = [task.train_prompt(config.seed, index) for index in range(NUM_PROMPTS_LISTED)]
    by_text = {prompt.text: prompt for prompt in prompts}

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        rewards = [task.score(by_text[text], given) for text, given in zip(prompts, completions, strict=True)]
        counter.add(len(rewards), sum(rewards))
        return rewards

    micro = setup.micro or setup.train_batch
    betas = config.optimizer.betas
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(start),
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": [prompt.text for prompt in prompts]}),
        args=GRPOConfig(
            output_dir=folder,
            max_steps=10**6,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=setup.train_batch // micro,
            num_generations=config.batch.group_size,
            max_completion_length=task.max_response_tokens,
            shuffle_dataset=False,
            temperature=config.sampling.temperature,
            beta=0.0,
            loss_type="dapo",  # every token of the batch weighs the same, as in ours
            learning_rate=config.optimizer.lr,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            weight_decay=0.0,
            adam_beta1=betas[0],
            adam_beta2=betas[1],
            adam_epsilon=config.optimizer.eps,
            max_grad_norm=0.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_dropout=True,
            dataloader_num_workers=0,
            dataloader_pin_memory=False,
            logging_strategy="no",
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )


def run() -> list[Table]:
    """Our loop against TRL's at each batch."""
    from harness.warm_start import ensure_warm_start

    try:
        import trl
    except ImportError:
        return [Table("Samples/s against TRL: not measured", [], ("trl is missing; make bench installs it",))]
    ensure_warm_start(default_trial(TRAIN_BATCHES[0]).config, RESULTS)
    with process(serve_ours) as ours, process(serve_trl) as theirs:
        rows = [_compare(ours, theirs, train_batch) for train_batch in TRAIN_BATCHES]
    return [
        Table(
            f"Is our loop faster than TRL {trl.__version__}'s GRPOTrainer? (samples/s, one thread each)",
            rows,
            (
                f"{ROUNDS} rounds of {TURN_SAMPLES:,} samples each, interleaved; the ratio is taken round by round. "
                "Aim: 4 at every batch, at least 2.",
                "cpu ratio: of the processor time for the same samples, which other processes disturb less. "
                "TRL micro: responses in one of its forward passes, the fastest of those tried.",
            ),
        )
    ]


def _compare(ours: Side, theirs: Side, train_batch: int) -> dict[str, Any]:
    micro = _fastest_micro(theirs, train_batch)
    ours.load(Setup(train_batch))
    theirs.load(Setup(train_batch, micro))
    rounds = [(ours.measure(TURN_SAMPLES), theirs.measure(TURN_SAMPLES)) for _ in range(ROUNDS)]
    ours.unload()
    theirs.unload()
    return {
        "B": train_batch,
        **spread("ours", [mine.samples_per_s for mine, _ in rounds]),
        **spread("TRL", [other.samples_per_s for _, other in rounds]),
        **spread("ratio", [mine.samples_per_s / other.samples_per_s for mine, other in rounds], 3),
        "cpu ratio": significant(median(other.cpu_s / mine.cpu_s for mine, other in rounds), 3),
        "TRL micro": micro,
        "reward ours": significant(sum(mine.reward for mine, _ in rounds) / ROUNDS, 3),
        "reward TRL": significant(sum(other.reward for _, other in rounds) / ROUNDS, 3),
    }


def _fastest_micro(theirs: Side, train_batch: int) -> int:
    choices = TRL_MICRO[train_batch]
    if len(choices) == 1:
        return choices[0]
    rates = {}
    for micro in choices:
        theirs.load(Setup(train_batch, micro))
        rates[micro] = theirs.measure(CHOICE_SAMPLES).samples_per_s
        theirs.unload()
    return max(choices, key=rates.__getitem__)
