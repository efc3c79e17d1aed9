"""How full an engine is, under a clock that counts its steps."""

from __future__ import annotations

import json
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from harness.members import in_process
from harness.parts import build_parts
from harness.rollout import occupancy, stream, transformers
from harness.rollout.engine import Sampling
from harness.rollout.occupancy import Meter, Occupancy
from harness.rollout.transformers import TransformersEngine
from harness.streaming import open_intake
from harness.tracking.jsonl import read_records
from harness.trial import run_trial
from harness.types import Prompt, RolloutGroup
from harness.update import Progress, run_update
from tests.harness.small import TOKENIZER, model, planned_trial, trial_dir

PROMPTS = [Prompt(index, text) for index, text in enumerate(["123=", "40=", "5="])]
SAMPLING = Sampling(temperature=1.0, max_response_tokens=16, seed=0, purpose="train", num_sampled=4)


@pytest.fixture(autouse=True)
def _every_step_takes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (transformers, stream):
        monkeypatch.setattr(module, "Meter", partial(Meter, clock=count().__next__))


def lengths(groups: list[RolloutGroup]) -> np.ndarray:
    return np.array([len(rollout.token_ids_T) for group in groups for rollout in group.rollouts])


def test_a_meter_adds_up_responses_times_seconds() -> None:
    times = iter([10.0, 12.0, 13.0, 20.0, 20.5])
    meter = Meter(4, times.__next__)
    meter.start()
    meter.lap(4)  # 2 s
    meter.lap(2)  # 1 s: half is not less than half
    meter.start()  # 7 s of idleness
    meter.lap(1)  # 0.5 s
    # 2 * 4 + 1 * 2 + 0.5 * 1 = 10.5 response seconds in 3.5
    assert meter.total == Occupancy(4, busy_s=3.5, response_s=10.5, tail_s=0.5)
    assert meter.total.in_flight_mean == 3.0


def test_two_engines_beside_each_other_and_one_after_another() -> None:
    one, other = Occupancy(4, 2.0, 8.0, 0.0), Occupancy(4, 1.0, 1.0, 1.0)
    both = occupancy.beside([one, other])
    assert both == Occupancy(8, 3.0, 9.0, 1.0, engines=2)
    assert both.in_flight_mean == 6.0  # 3 in each
    # Of 4 s one was busy for 2 and the other for 1.
    assert both.as_json(4.0)["busy_frac"] == pytest.approx((2 + 1) / 8)
    assert one.then(other) == Occupancy(4, 3.0, 9.0, 1.0)
    assert one.then(other).since(one) == other
    assert Occupancy(4).as_json(2.0) == {"places": 4, "busy_frac": 0.0}  # no step: no mean, rather than 0


@pytest.mark.parametrize("gen_batch", [None, 5])
def test_responses_in_flight_are_counted_at_every_token(gen_batch: int | None) -> None:
    engine = TransformersEngine(model(), TOKENIZER, gen_batch)
    lengths_S = lengths(engine.generate(PROMPTS, SAMPLING))
    assert lengths_S.min() < lengths_S.max()
    waves = np.split(lengths_S, range(gen_batch or 12, 12, gen_batch or 12))
    places = gen_batch or 12
    in_flight = [int((wave > t).sum()) for wave in waves for t in range(wave.max())]
    assert engine.occupancy == Occupancy(
        places, busy_s=len(in_flight), response_s=lengths_S.sum(), tail_s=sum(2 * n < places for n in in_flight)
    )


def test_ends_are_ignored_where_lengths_are_forced() -> None:
    engine = TransformersEngine(model(), TOKENIZER)
    free = engine.generate(PROMPTS, SAMPLING)
    forced = engine.generate(PROMPTS, Sampling(**vars(SAMPLING) | {"ignore_end": True}))
    assert set(lengths(forced)) == {16}
    for group, longer in zip(free, forced, strict=True):
        for rollout, long in zip(group.rollouts, longer.rollouts, strict=True):
            # The same draws up to the end, which then is a token like others.
            assert long.token_ids_T[: len(rollout.token_ids_T)].tolist() == rollout.token_ids_T.tolist()
    # Nothing ends early: 16 steps with every place taken.
    assert engine.occupancy == Occupancy(12, busy_s=16, response_s=12 * 16)


def test_a_stream_counts_its_steps_and_two_of_them_add_up(tmp_path: Path) -> None:
    changes = {"execution__mode": "streaming", "batch__gen_batch": 32, "sampling__max_response_tokens": 24}
    parts = build_parts(planned_trial(**changes).config, tmp_path, in_process)
    progress = Progress()
    intake = open_intake(parts, progress)
    assert intake is not None
    tokens = 0.0
    for _ in range(3):
        update = run_update(parts, progress, intake)
        tokens += update.tokens_generated
        used = intake.usage()
        assert used["places"] == 32 and 0 < used["in_flight_mean"] <= 32
    [state] = intake.source.states
    # Each step adds a token to every response in flight: those of the batches, of groups that wait and of open ones.
    assert state.occupancy.response_s >= tokens
    assert state.occupancy.busy_s <= state.occupancy.response_s <= 32 * state.occupancy.busy_s


def test_every_update_records_what_its_roles_did(tmp_path: Path) -> None:
    directory = trial_dir(tmp_path)
    list(run_trial(planned_trial(execution__checkpoint_every_samples=64), directory, tmp_path))
    records = [record for record in read_records(directory / "metrics.jsonl")[0] if record["kind"] == "train"]
    assert len(records) == 8
    for record in records:
        engine, total_s = record["engine"], sum(record["seconds"].values())
        # 16 responses, a second a token: the mean in flight is tokens over the longest response.
        assert engine["places"] == 16
        assert engine["in_flight_mean"] == record["tokens_generated"] / record["response_tokens"]["max"]
        assert engine["tail_frac"] == engine["tail_s"] / record["response_tokens"]["max"]
        assert record["trainer"]["busy_frac"] == pytest.approx(1 - record["seconds"]["generate"] / total_s)
        assert record["response_tokens"]["mean"] == record["metrics"]["response/length_mean"]
        assert record["response_tokens"]["mean"] <= record["response_tokens"]["p95"] <= record["response_tokens"]["max"]
        assert record["throughput"]["samples_per_s"] == pytest.approx(16 / total_s)
        assert record["throughput"]["tokens_per_s"] == pytest.approx(record["tokens_trained"] / total_s)
    apart = json.loads((directory / "outcome.json").read_text())["seconds_apart"]
    assert set(apart) == {"startup", "checkpoint"} and min(apart.values()) > 0
