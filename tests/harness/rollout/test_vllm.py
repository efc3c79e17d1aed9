"""The real vLLM, in a process of its own: the same policy as transformers, and never an old one."""

from __future__ import annotations

import ipaddress
import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from harness.config import ModelConfig
from harness.errors import EnvironmentProblem, InputError
from harness.execution import ExecutionConfig
from harness.memory import machine_memory_bytes
from harness.rollout.engine import Sampling
from harness.rollout.transformers import TransformersEngine
from harness.rollout.vllm import VllmEngine, import_vllm
from harness.tracking.jsonl import read_records
from harness.training.batch import token_batch
from harness.training.packing import response_logprobs
from harness.trial import run_trial
from harness.types import Prompt, Rollout, RolloutGroup
from tests.harness.processes import spawn_processes
from tests.harness.rollout import vllm_child as child
from tests.harness.small import LEARNS, TOKENIZER, model, planned_trial, trial_dir

PROMPTS = [Prompt(4, "12="), Prompt(9, "40771="), Prompt(5, "3=")]
SAMPLING = Sampling(temperature=0.6, max_response_tokens=8, seed=1, purpose="train", num_sampled=8)
LONG = [Prompt(0, "31" * 39 + "="), Prompt(1, "31" * 39 + "=")]  # two whole blocks of the cache, the same for both
Call = Callable[..., Any]
# Keys and values of 32 tokens in float32, in two layers of 4 heads; vLLM takes none smaller than 32.
BLOCK_BYTES = 32 * 2 * 2 * 4 * 32 * 4
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def call() -> Iterator[Call]:
    """Calls a function of vllm_child in its process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:

        def in_child(function: Callable[..., Any], *arguments: Any, **changes: Any) -> Any:
            return process.submit(function, *arguments, **changes).result(timeout=600)

        yield in_child
        with pytest.raises(BrokenProcessPool):
            in_child(child.stop)


@pytest.fixture(scope="module")
def started(call: Call) -> dict[str, str]:
    found: dict[str, str] = call(child.start)
    return found


@pytest.fixture
def engine(call: Call, started: dict[str, str]) -> Call:
    """The engine with the weights that the tests begin with."""
    call(child.update_weights, named(model()), 0)
    return call


def named(module: Any) -> list[tuple[str, torch.Tensor]]:
    return [(name, parameter.detach()) for name, parameter in module.named_parameters()]


def rollouts_of(groups: Sequence[RolloutGroup]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group.rollouts]


def tokens_of(groups: Sequence[RolloutGroup]) -> list[list[int]]:
    return [rollout.token_ids_T.tolist() for rollout in rollouts_of(groups)]


def gap(groups: Sequence[RolloutGroup], module: Any, temperature: float) -> float:
    """Largest difference between the log-probabilities of the engine and of transformers."""
    behaviour = np.concatenate([rollout.behaviour_logprobs_T for rollout in rollouts_of(groups)])
    own = np.concatenate(response_logprobs(module, 64, temperature, 1024, token_batch(groups)))
    return float(np.abs(own - behaviour).max())


def test_it_is_vllm(started: dict[str, str]) -> None:
    assert started["version"].startswith("0.32.")
    assert started["engine"] == "vllm.v1.engine.llm_engine"
    assert started["models"] == "vllm.model_executor.models.llama"
    assert started["platform"] == "cuda" if torch.cuda.is_available() else "cpu"


def test_it_listens_on_the_loopback_only(call: Call, started: dict[str, str]) -> None:
    """In its one process; every socket, gloo's too."""
    at = call(child.listens_at)
    assert at and {ip for ip in at if not ipaddress.ip_address(ip.removeprefix("::ffff:")).is_loopback} == set()


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_logprobs_are_those_of_the_tempered_distribution(engine: Call, temperature: float) -> None:
    sampling = Sampling(temperature, 8, 1, "train", num_sampled=8)
    groups, _ = engine(child.generate, PROMPTS, sampling)
    assert [len(group.rollouts) for group in groups] == [8, 8, 8]
    assert [group.prompt for group in groups] == PROMPTS
    assert gap(groups, model(), temperature) < 1e-4
    assert gap(groups, model(), temperature + 0.4) > 0.1  # the test can fail


def test_greedy_responses_are_the_same_tokens(engine: Call) -> None:
    prompts = [Prompt(index, f"{index * 7919 % 10**6:06d}=") for index in range(40)]
    sampling = Sampling(1.0, 12, 0, "evaluate", num_sampled=1, num_greedy=1)
    groups, _ = engine(child.generate, prompts, sampling)
    own = TransformersEngine(model(), TOKENIZER).generate(prompts, sampling)
    assert tokens_of(groups)[1::2] == tokens_of(own)[1::2]
    assert gap(groups, model(), 1.0) < 1e-4


def test_what_vllm_does_not_know_of_greedy_responses_is_missing(engine: Call) -> None:
    sampling = Sampling(0.6, 8, 1, "train", num_sampled=1, num_greedy=1)
    for group in engine(child.generate, PROMPTS, sampling)[0]:
        sampled, greedy = (rollout.behaviour_logprobs_T for rollout in group.rollouts)
        assert np.isfinite(sampled).all() and np.isnan(greedy).all()


def test_the_first_two_tokens_follow_the_policys_distribution(engine: Call) -> None:
    """Chi-square over the first token and over the pairs of the first two, 6,000 draws, at 1% each.

    Power, which the last lines hold: a first token's probability of .158 that is off by a fifth is found 98% of the
    time, a temperature of .7 in place of .6 96%.
    """
    n, size = 6000, len(TOKENIZER)
    sampling = Sampling(0.6, 2, 0, "train", num_sampled=n, ignore_end=True)
    groups, _ = engine(child.generate, PROMPTS[:1], sampling)
    counts = Counter(tuple(tokens) for tokens in tokens_of(groups))
    observed = np.array([counts[a, b] for a in range(size) for b in range(size)])
    expected = n * pair_probabilities(0.6)
    assert expected.min() > 5
    assert stats.chisquare(observed, expected).pvalue > 0.01
    assert stats.chisquare(first(observed), first(expected)).pvalue > 0.01
    p, top = first(expected) / n, int(first(expected).argmax())
    off = p * (1 - 1.2 * p[top]) / (1 - p[top])
    off[top] = 1.2 * p[top]
    assert p[top] == pytest.approx(0.158, abs=1e-3)
    assert power(n, p, off) > 0.98
    assert power(n, p, first(pair_probabilities(0.7))) > 0.96


def first(pairs: np.ndarray) -> np.ndarray:
    return pairs.reshape(len(TOKENIZER), -1).sum(1)


def pair_probabilities(temperature: float) -> np.ndarray:
    """Of each pair of first tokens under the policy, from transformers."""
    prompt = TOKENIZER(PROMPTS[0].text)["input_ids"]
    module = model()
    with torch.inference_mode():
        first = torch.softmax(module(torch.tensor([prompt])).logits[0, -1].double() / temperature, -1)
        after = torch.tensor([[*prompt, token] for token in range(len(first))])
        second = torch.softmax(module(after).logits[:, -1].double() / temperature, -1)
    return (first[:, None] * second).flatten().numpy()


def power(n: int, p: np.ndarray, q: np.ndarray) -> float:
    """Probability of finding at 1% that n draws come from q and not from p: noncentral chi-square, n sum (q - p)^2 / p."""
    critical = stats.chi2.ppf(0.99, len(p) - 1)
    return float(stats.ncx2.sf(critical, len(p) - 1, n * np.sum((q - p) ** 2 / p)))


def test_a_call_repeats_itself_and_nothing_else_does(engine: Call) -> None:
    sampling = Sampling(1.0, 20, 1, "train", num_sampled=32, ignore_end=True)
    groups, _ = engine(child.generate, PROMPTS, sampling)
    assert tokens_of(engine(child.generate, PROMPTS, sampling)[0]) == tokens_of(groups)
    others = [
        engine(child.generate, PROMPTS, other)[0]
        for other in (
            Sampling(1.0, 20, 2, "train", num_sampled=32, ignore_end=True),
            Sampling(1.0, 20, 1, "train", round=1, num_sampled=32, ignore_end=True),
            Sampling(1.0, 20, 1, "evaluate", num_sampled=32, ignore_end=True),
        )
    ]
    # Also the same text at another place of the prompt stream, as on another replica.
    others.append(engine(child.generate, [Prompt(prompt.index + 100, prompt.text) for prompt in PROMPTS], sampling)[0])
    seen = [tuple(tokens) for found in (groups, *others) for tokens in tokens_of(found)]
    assert len(seen) == 5 * 96 and len(set(seen)) == len(seen)


def test_responses_end_at_the_end_token_or_are_marked_truncated(engine: Call) -> None:
    sampling = Sampling(1.0, 5, 0, "train", num_sampled=200)
    rollouts = rollouts_of(engine(child.generate, PROMPTS[:1], sampling)[0])
    assert {rollout.truncated for rollout in rollouts} == {True, False}
    for rollout in rollouts:
        ends = np.flatnonzero(rollout.token_ids_T == TOKENIZER.eos_token_id).tolist()
        assert ends == ([] if rollout.truncated else [len(rollout.token_ids_T) - 1])
        assert not rollout.truncated or len(rollout.token_ids_T) == 5
    # At the limit an end token is an end, as in the engine transformers.
    assert any(len(rollout.token_ids_T) == 5 and not rollout.truncated for rollout in rollouts)


def test_no_more_are_in_flight_than_allowed(engine: Call) -> None:
    sampling = Sampling(1.0, 4, 0, "train", num_sampled=100, ignore_end=True)
    assert engine(child.most_running, PROMPTS, sampling) == child.IN_FLIGHT  # of 300
    _, occupancy = engine(child.generate, PROMPTS, sampling)
    # Three waves of 4 tokens: 128, 128, 44.
    assert occupancy.places == child.IN_FLIGHT
    assert 44 < occupancy.in_flight_mean < child.IN_FLIGHT


def test_new_weights_are_sampled_from_and_nothing_old_is_left(engine: Call) -> None:
    def sample() -> list[RolloutGroup]:
        groups: list[RolloutGroup] = engine(child.generate, LONG, SAMPLING)[0]
        return groups

    new = model(seed=1)
    old = sample()
    assert gap(old, model(), 0.6) < 1e-4
    assert gap(old, new, 0.6) > 1  # before the sync
    engine(child.update_weights, named(new), 7)
    groups = sample()
    assert gap(groups, new, 0.6) < 1e-4
    assert {int(v) for rollout in rollouts_of(groups) for v in rollout.versions_T} == {7}


def test_weights_of_another_model_are_refused_and_nothing_is_sampled_until_right_ones_come(engine: Call) -> None:
    weights = named(model())
    longer = [
        (name, torch.cat([weight, weight[:1]]) if name == "model.embed_tokens.weight" else weight)
        for name, weight in weights
    ]
    with pytest.raises(InputError, match=r"trainer's vocabulary has 14 tokens, the engine's 13; needs one model"):
        engine(child.update_weights, longer, 1)
    with pytest.raises(RuntimeError, match="did not arrive whole"):
        engine(child.generate, PROMPTS, SAMPLING)
    with pytest.raises(InputError, match=r"engine's model has a weight lm_head.weight, the trainer's none"):
        engine(child.update_weights, weights[:-1], 1)
    with pytest.raises(InputError, match=r"trainer's model has a weight model.bias, the engine's none"):
        engine(child.update_weights, [("model.bias", torch.zeros(1)), *weights], 1)
    with pytest.raises(InputError, match=r"model.norm.weight is \(63,\) in the trainer and \(64,\) in the engine"):
        engine(child.update_weights, [(name, w[:63] if name == "model.norm.weight" else w) for name, w in weights], 1)
    engine(child.update_weights, weights, 1)
    assert gap(engine(child.generate, PROMPTS, SAMPLING)[0], model(), 0.6) < 1e-4


def test_prompts_longer_than_the_limit(engine: Call) -> None:
    prompt = Prompt(3, "7" * 80 + "=")
    with pytest.raises(InputError, match=r"execution.vllm.max_prompt_tokens: 80; prompt 3 \('7777.*'\) has 81; needs"):
        engine(child.generate, [*PROMPTS, prompt], SAMPLING)
    with pytest.raises(InputError, match=r"sampling.max_response_tokens: 126; .* takes 3 of the 128 tokens"):
        engine(child.generate, PROMPTS[:1], Sampling(1.0, 126, 0, "train"))


def test_responses_in_flight_go_on_under_new_weights_and_know_which(engine: Call) -> None:
    sampling = Sampling(0.6, 10, 1, "train", num_sampled=8, ignore_end=True)
    before = rollouts_of(engine(child.generate, PROMPTS, sampling)[0])
    arrivals, discarded = engine(child.fly, PROMPTS, sampling, 4, named(model(seed=1)), False)
    assert discarded == 0 and len(arrivals) == 24
    found = {(arrival.prompt_index, arrival.response): arrival.rollout for arrival in arrivals}
    rollouts = [found[prompt.index, response] for prompt in PROMPTS for response in range(8)]
    for rollout, other in zip(rollouts, before, strict=True):
        assert rollout.versions_T.tolist() == [0] * 4 + [1] * 6
        assert rollout.token_ids_T[:4].tolist() == other.token_ids_T[:4].tolist()
        np.testing.assert_allclose(rollout.behaviour_logprobs_T[:4], other.behaviour_logprobs_T[:4], atol=1e-5)
    assert [r.token_ids_T.tolist() for r in rollouts] != [r.token_ids_T.tolist() for r in before]


def test_responses_that_start_over_are_those_of_the_new_weights(engine: Call) -> None:
    sampling, new = Sampling(0.6, 10, 1, "train", num_sampled=8, ignore_end=True), model(seed=1)
    arrivals, discarded = engine(child.fly, PROMPTS, sampling, 4, named(new), True)
    assert discarded == 24 * 4
    after = engine(child.generate, PROMPTS, sampling)[0]
    found = {(arrival.prompt_index, arrival.response): arrival.rollout for arrival in arrivals}
    for prompt, group in zip(PROMPTS, after, strict=True):
        for response, rollout in enumerate(group.rollouts):
            assert found[prompt.index, response].token_ids_T.tolist() == rollout.token_ids_T.tolist()
            assert set(found[prompt.index, response].versions_T.tolist()) == {1}


class Remote:
    """The engine of a trial, in the child's process."""

    call: Call
    deaf = False

    def __init__(self, module: Any, tokenizer: Any, gen_batch: int | None) -> None:
        self.update_weights(module.named_parameters(), 0)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RolloutGroup]:
        groups, self.occupancy = self.call(child.generate, prompts, sampling)
        found: list[RolloutGroup] = groups
        return found

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        if not (self.deaf and version):
            self.weights = [(name, weight.detach().clone()) for name, weight in weights]
        self.call(child.update_weights, self.weights, version)


@pytest.mark.parametrize("deaf", [False, True])
def test_in_a_trial_new_weights_arrive_or_it_fails(
    engine: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    monkeypatch.setattr(Remote, "call", staticmethod(engine), raising=False)
    monkeypatch.setattr(Remote, "deaf", deaf)
    monkeypatch.setattr("harness.parts.TransformersEngine", Remote)
    trial = planned_trial(**LEARNS, optimizer__lr=3e-4, budget_samples=64)
    if deaf:
        with pytest.raises(InputError, match=r"execution.max_logprob_gap: 0.01; in update 2 "):
            list(run_trial(trial, trial_dir(tmp_path), tmp_path))
    else:
        list(run_trial(trial, trial_dir(tmp_path), tmp_path))
    records, _ = read_records(trial_dir(tmp_path) / "metrics.jsonl")
    gaps = [record["metrics"]["policy/logprob_gap_max"] for record in records if record["kind"] == "train"]
    assert len(gaps) == (2 if deaf else 4)
    assert max(gaps[:-1]) < 1e-4 and (gaps[-1] > 0.01) == deaf


def test_resting_between_calls_changes_nothing(engine: Call) -> None:
    before = tokens_of(engine(child.generate, PROMPTS, SAMPLING)[0])
    engine(child.sleep_between_calls)
    for version in (1, 2):
        assert tokens_of(engine(child.generate, PROMPTS, SAMPLING)[0]) == before
        engine(child.update_weights, named(model()), version)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_resting_engine_leaves_the_gpu_to_the_trainer(engine: Call) -> None:
    engine(child.generate, PROMPTS, SAMPLING)
    resting, awake = engine(child.free_frac)
    assert resting - awake > 0.3  # of the half that execution.vllm.memory_frac gives it


@pytest.mark.parametrize("kind", child.KINDS)
def test_every_weight_arrives_whatever_the_architecture(call: Call, started: dict[str, str], kind: str) -> None:
    call(child.start, kind)
    for seed in (0, 1):
        module = child.of_kind(kind, seed)
        if seed:
            call(child.update_weights, named(module), 1)
        groups, _ = call(child.generate, PROMPTS, SAMPLING)
        assert gap(groups, module, 0.6) < 1e-4
    assert gap(groups, child.of_kind(kind, 0), 0.6) > 0.1


def test_two_processes_share_one_model(call: Call, started: dict[str, str]) -> None:
    found = call(child.start, vllm={"tensor_parallel": 2})
    assert found["models"].split() == ["vllm.model_executor.models.llama"] * 2
    assert gap(call(child.generate, PROMPTS, SAMPLING)[0], model(), 0.6) < 1e-4
    call(child.update_weights, named(model(seed=1)), 1)
    assert gap(call(child.generate, PROMPTS, SAMPLING)[0], model(seed=1), 0.6) < 1e-4


@pytest.mark.parametrize("scarce", [False, True])
def test_an_evaluation_moves_nothing_that_is_in_flight(call: Call, started: dict[str, str], scarce: bool) -> None:
    """90 responses stand still during an evaluation of 90 more, also where these take the whole cache.

    Each takes a block. A cache of 91 blocks has one that is nobody's: what is held gives its blocks up for the while.
    """
    settings = {"memory_frac": 91.5 * BLOCK_BYTES / machine_memory_bytes()} if scarce else {}
    call(child.start, mode="streaming", vllm=settings)
    sampling = Sampling(0.6, 10, 1, "train", num_sampled=30, ignore_end=True)
    alone, _ = call(child.generate, PROMPTS, sampling)
    arrivals, (before, after), occupancy = call(child.pause, PROMPTS, sampling, 4)
    assert before == after == 90 * 4
    assert occupancy.places == 90 and occupancy.in_flight_mean == pytest.approx(90, rel=0.3)
    found = {(arrival.prompt_index, arrival.response): arrival.rollout for arrival in arrivals}
    rollouts = [found[prompt.index, response] for prompt in PROMPTS for response in range(30)]
    assert [rollout.token_ids_T.tolist() for rollout in rollouts] == tokens_of(alone)
    assert gap([RolloutGroup(g.prompt, g.prompt_ids_L, tuple(rollouts[30 * p : 30 * p + 30]))
                for p, g in enumerate(alone)], model(), 0.6) < 1e-4  # fmt: skip


def test_the_room_is_that_of_a_cache_as_large_as_may_be(call: Call, started: dict[str, str]) -> None:
    """Prompts of 80 and responses of 20 tokens take 4 blocks; here half of the memory were blocks. On a GPU it is."""
    call(child.start)
    room = call(child.room)
    if started["platform"] == "cpu":
        assert room.responses == pytest.approx(0.5 * machine_memory_bytes() / (4 * BLOCK_BYTES), rel=0.01)
        # A block that is nobody's, and those of 128 responses.
        assert room.source.startswith("vLLM: 513 cache blocks, 100 tokens for a prompt and its response, if execution.")
        assert f"{0.5 * machine_memory_bytes() / 1e9:,.3g} GB, were cache" in room.source
    else:
        assert room.responses > child.IN_FLIGHT and room.source.endswith("100 tokens for a prompt and its response")


def test_a_trial_streams_from_it_and_every_response_is_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine in a process of its own beside the trainer: policies agree where no token is old, and ages are known."""
    monkeypatch.setattr("harness.parts._spawn_on_ray", lambda execution: spawn_processes)
    vllm = {"vllm": {"max_prompt_tokens": 16}, "checkpoint_every_samples": 48}
    trial = planned_trial(
        execution={"engine": "vllm", "mode": "streaming", "layout": "separate", **vllm},
        batch__gen_batch=32, sampling__max_response_tokens=24, budget_samples=96,
    )  # fmt: skip
    list(run_trial(trial, trial_dir(tmp_path), tmp_path))
    records, _ = read_records(trial_dir(tmp_path) / "metrics.jsonl")
    rows = [record for record in records if record["kind"] == "train"]
    assert [row["samples_trained"] for row in rows] == [16, 32, 48, 64, 80, 96]
    for row, dropped in zip(rows, np.cumsum([row["samples_dropped"] for row in rows]).tolist(), strict=True):
        assert row["samples_generated"] == row["samples_trained"] + dropped + row["samples_in_flight"]
    assert rows[0]["metrics"]["policy/logprob_gap_max"] < 1e-4
    assert rows[0]["metrics"]["policy/staleness_updates_max"] == 0
    assert max(row["metrics"]["policy/staleness_updates_max"] for row in rows) >= 1
    shares = [row["engine"]["busy_frac"] for row in rows]  # 0 where all came from the queue
    assert max(shares) > 0 and all(0 <= share < 1.1 for share in shares)


def test_a_tokenizer_of_another_model_is_refused() -> None:
    small: Any = model()
    small.config.vocab_size = 12
    with pytest.raises(
        InputError, match=r"the tokenizer of tiny-llama has 13 tokens, the model 12; needs one that belongs"
    ):
        VllmEngine(small, TOKENIZER, ModelConfig(), ExecutionConfig(), 8, 8)


def test_without_vllm_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'batch-invariance\[vllm\]', on CPUs: make engines"):
        import_vllm()
