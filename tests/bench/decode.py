"""Generation and training against the bare matrix products of the same shapes.

The shapes are those that the model's linear layers see: they are recorded in one pass and then multiplied alone,
random numbers of the same type, nothing in between. What is left is attention, norms, activations, the cache,
sampling and the interpreter. One thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch.nn.functional import linear

from harness.config import TrialConfig
from harness.parts import Parts, build_parts
from harness.types import RolloutGroup, UpdateStats
from harness.update import Progress, run_update
from tests.bench.common import NO_NOISE, RESULTS, Table, default_trial, significant
from tests.bench.self_times import SelfTimes

IN_FLIGHT = (8, 64, 512, 2048)
MICRO = (64, 128, 256)
REPEATS = 5
MIN_S = 0.2

Shape = tuple[int, int, int]
"""Rows, inputs and outputs of one linear layer's call."""


def run() -> list[Table]:
    """Decoding by responses in flight, and the training pass by micro-batch."""
    torch.set_num_threads(1)
    return [
        Table(
            "What does a decode step cost beside its matrix products? (one thread)",
            [_decoding(in_flight) for in_flight in IN_FLIGHT],
            (
                "Step: the engine's time, prefill included, by the tokens drawn for each response; forward: the model's "
                "part of it. Products: those of all its passes, by step. A token: one drawn, end tokens included.",
            ),
        ),
        Table(
            "What does the training pass cost beside its matrix products? (one thread)",
            [_training(micro) for micro in MICRO],
            (
                "Step: an optimizer step of one micro-batch, everything included; pass: forward and backward alone. "
                "Products: each linear layer once forward and twice backward, over the packed tokens.",
            ),
        ),
    ]


def _decoding(in_flight: int) -> dict[str, Any]:
    parts = build_parts(_sized(in_flight), RESULTS)
    prompts = [parts.task.train_prompt(0, index) for index in range(parts.config.batch.num_prompts)]

    def generate() -> list[RolloutGroup]:
        return parts.engine.generate(prompts, parts.train_sampling())

    with _linear_shapes(_model(parts)) as shapes:
        groups = generate()
    tokens = sum(len(rollout.token_ids_T) for group in groups for rollout in group.rollouts)
    steps = max(len(rollout.token_ids_T) for group in groups for rollout in group.rollouts)
    whole_s, bare_s = _seconds(generate, lambda: _products(shapes))
    share = _model_share(_model(parts), generate)
    return {
        "in flight": in_flight,
        "ms/step": significant(whole_s / steps * 1e3, 3),
        "forward": significant(share * whole_s / steps * 1e3, 3),
        "products": significant(bare_s / steps * 1e3, 3),
        "step/products": significant(whole_s / bare_s, 3),
        "us/token": significant(whole_s / tokens * 1e6, 3),
        "products us/token": significant(bare_s / tokens * 1e6, 3),
        "responses/s": significant(in_flight / whole_s),
    }


def _training(micro: int) -> dict[str, Any]:
    parts = build_parts(_sized(micro), RESULTS)
    step = _recorded_step(parts)
    with _linear_shapes(_model(parts)) as shapes:
        step()
    whole_s, bare_s = _seconds(step, lambda: _products(shapes, backward=True))
    share = _model_share(_model(parts), step)
    return {
        "micro": micro,
        "packed tokens": max(rows for rows, _, _ in shapes),
        "ms/step": significant(whole_s * 1e3, 3),
        "pass": significant(share * whole_s * 1e3, 3),
        "products": significant(bare_s * 1e3, 3),
        "pass/products": significant(share * whole_s / bare_s, 3),
        "step/products": significant(whole_s / bare_s, 3),
        "step samples/s": significant(micro / whole_s),
        "products samples/s": significant(micro / bare_s),
    }


def _sized(responses: int) -> TrialConfig:
    """The default trial with so many responses in a batch, all in flight and in one pass."""
    config = default_trial(64, NO_NOISE).config
    num_prompts = responses // config.batch.group_size
    sizes = {"num_prompts": num_prompts, "micro_batch_size_per_gpu": None, "gen_batch": None}
    return config.model_copy(update={"batch": config.batch.model_copy(update=sizes)})


def _model(parts: Parts) -> torch.nn.Module:
    model: torch.nn.Module = parts.engine.model  # type: ignore[attr-defined]
    return model


def _recorded_step(parts: Parts) -> Callable[[], UpdateStats]:
    """The optimizer step of the first rollout batch, to be taken again and again."""
    taken: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    class Recorder:
        """A trainer that only notes what it is asked for."""

        def step(self, *args: Any, **kwargs: Any) -> UpdateStats:
            taken.append((args, kwargs))
            return UpdateStats(1, 1, {})

        def weights(self) -> Iterator[Any]:
            return iter(())

    run_update(replace(parts, trainer=Recorder()), Progress())  # type: ignore[arg-type]
    args, kwargs = taken[0]
    return lambda: parts.trainer.step(*args, **kwargs)


@contextmanager
def _linear_shapes(model: torch.nn.Module) -> Iterator[list[Shape]]:
    """The shapes of every call of a linear layer while the context is open."""
    shapes: list[Shape] = []

    def note(layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...], _: torch.Tensor) -> None:
        assert isinstance(layer, torch.nn.Linear)
        shapes.append((inputs[0].numel() // layer.in_features, layer.in_features, layer.out_features))

    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield shapes
    finally:
        for handle in handles:
            handle.remove()


_operands: dict[Shape, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}


@torch.inference_mode()
def _products(shapes: list[Shape], backward: bool = False) -> None:
    """x W^T of each shape; with `backward` also the products of the gradients of x and of W."""
    for shape in shapes:
        if shape not in _operands:
            rows, inputs, outputs = shape
            _operands[shape] = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)
        x, weight, gradient = _operands[shape]
        linear(x, weight)
        if backward:
            gradient @ weight
            gradient.T @ x


def _model_share(model: Any, call: Callable[[], Any]) -> float:
    """Share of the call's time that forward and backward passes take."""
    times, forward = SelfTimes(), model.forward
    model.forward = times.wrap(forward, "model")
    try:
        with times.patched({"torch:Tensor.backward": "model"}):
            for _ in range(REPEATS):
                with times.label("around"):
                    call()
    finally:
        model.forward = forward
    return times.seconds["model"] / sum(times.seconds.values())


def _seconds(*calls: Callable[[], Any]) -> list[float]:
    """Median seconds of each call over repeats that take turns, each long enough to time well."""
    for call in calls:
        call()
    found = [[_once(call) for call in calls] for _ in range(REPEATS)]
    return [median(seconds) for seconds in zip(*found, strict=True)]


def _once(call: Callable[[], Any]) -> float:
    calls, started_s = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - started_s < MIN_S:
        call()
        calls += 1
    return (time.perf_counter() - started_s) / calls
