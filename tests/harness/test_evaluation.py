"""Mean of k samples, standard error over prompts, and what is absent where a task has no single right answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config import SweepConfig
from harness.errors import InputError
from harness.evaluation import evaluate
from harness.parts import build_parts
from harness.plan import make_plan
from harness.rewards import Scores
from harness.types import Prompt, ScoredGroups
from tests.harness.small import planned_trial


class Marked:
    """A scorer that gives the marks it was told."""

    def __init__(self, marks_PR: Sequence[Sequence[float]]) -> None:
        self.marks_S = np.array(marks_PR, dtype=np.float64).ravel()

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Scores:
        assert len(prompts) == len(responses) == len(self.marks_S)
        return Scores(self.marks_S, num_errors=1, num_timeouts=2)

    def close(self) -> None:
        pass


def test_a_prompts_score_is_the_mean_of_its_samples(tmp_path: Path) -> None:
    config = planned_trial(evaluation__samples_per_prompt=3, evaluation__num_prompts=2).config
    parts = build_parts(config, tmp_path)
    sampling = parts.eval_sampling(0)
    assert (sampling.num_sampled, sampling.num_greedy) == (3, 1)
    scorer = Marked([[1, 0, 0, 1], [1, 1, 0, 0]])  # the greedy response comes last
    metrics = evaluate(parts.eval_prompts, None, scorer, parts.tokenizer, parts.engine, parts.trainer, sampling)
    # Means 1/3 and 2/3: their mean is 1/2, its standard error (1/3) / 2. Greedy 1 and 0: 1/2 and 1/2.
    assert metrics == pytest.approx(
        {
            "eval/score": 1 / 2,
            "eval/score_se": 1 / 6,
            "eval/greedy_score": 1 / 2,
            "eval/greedy_score_se": 1 / 2,
            "eval/errors": 1,
            "eval/timeouts": 2,
        }
    )


def test_the_first_sample_is_the_same_however_many_there_are(tmp_path: Path) -> None:
    def first(samples: int) -> list[list[int]]:
        config = planned_trial(evaluation__samples_per_prompt=samples).config
        parts = build_parts(config, tmp_path)
        groups = parts.engine.generate(parts.eval_prompts, parts.eval_sampling(3))
        return [group.rollouts[0].token_ids_T.tolist() for group in groups]

    assert first(1) == first(4)


def test_failures_of_several_rounds_add_up() -> None:
    one = ScoredGroups((), np.zeros((2, 4)), 0, num_errors=1, num_timeouts=0)
    other = ScoredGroups((), np.zeros((1, 4)), 0, num_errors=3, num_timeouts=2)
    joined = one.joined(other)
    assert (joined.num_errors, joined.num_timeouts, joined.rewards_PR.shape) == (4, 2, (3, 4))
    plain = ScoredGroups((), np.zeros((2, 4)))
    assert (plain.joined(plain).num_errors, plain.joined(plain).num_timeouts) == (None, None)


GYM = {"name": "reasoning_gym", "generator": "chain_sum", "held_out": 16}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"evaluation__metric": "eval/expected_score"},
            "evaluation.metric: eval/expected_score; task.reasoning_gym has no single right answer whose probability it "
            "would be, needs eval/score or eval/greedy_score",
        ),
        (
            {"task": {"name": "rising_digits"}, "evaluation__metric": "eval/expected_score"},
            "evaluation.metric: eval/expected_score; task.rising_digits has no single right answer",
        ),
        (
            {"model__warm_start": {"steps": 1}},
            "model.warm_start: task.reasoning_gym has no single right answer to learn from; needs to be left out",
        ),
        (
            {"model__name": "tiny-llama"},
            "model.name: tiny-llama knows digits only; task.reasoning_gym needs a model that speaks, such as smollm2-135m",
        ),
        (
            {"sampling__max_response_tokens": None},
            "sampling.max_response_tokens: unset; a response to task.reasoning_gym may be of any length, needs a limit",
        ),
    ],
)
def test_what_a_task_in_words_asks_of_the_rest(changes: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {
        "task": GYM,
        "model__name": "smollm2-135m",
        "evaluation__metric": "eval/score",
        "sampling__max_response_tokens": 8,
    }
    planned_trial(**settings)
    with pytest.raises(InputError) as caught:
        planned_trial(**settings | changes)
    assert message in str(caught.value)


def test_arms_may_differ_in_what_a_generator_is_told() -> None:
    sweep = SweepConfig.model_validate(
        {
            "sweep": "small",
            "question": "does it matter?",
            "model": {"name": "smollm2-135m"},
            "task": GYM,
            "sampling": {"max_response_tokens": 8},
            "optimizer": {"lr": 1e-6},
            "budget_samples": 64,
            "seeds": 1,
            "reference": {"task.parameters.max_terms": 2},
            "arms": [{"task.parameters.max_terms": [2, 3], "task.parameters.min_terms": 2}],
        }
    )
    trials = make_plan(sweep).trials
    assert [trial.config.task.parameters for trial in trials] == [  # type: ignore[union-attr]
        {"max_terms": 2, "min_terms": 2},
        {"max_terms": 3, "min_terms": 2},
    ]
    assert [trial.axes["task.parameters.max_terms"] for trial in trials] == [2, 3]
