"""Questions of any generator by name: indexed, held-out ones apart, scored by the generator's own rule."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

from harness.errors import EnvironmentProblem, InputError
from harness.tasks import make_task
from harness.tasks.config import ReasoningGymConfig
from harness.tasks.data import words
from harness.tasks.reasoning_gym import ReasoningGym, check_generator, held_out_entries

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def gym(generator: str = "chain_sum", **settings: Any) -> ReasoningGym:
    task = make_task(ReasoningGymConfig(generator=generator, **{"held_out": 16, **settings}))
    assert isinstance(task, ReasoningGym)
    return task


def refusal(**settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        gym(**settings).train_prompt(0, 0)
    return str(caught.value)


def test_a_question_its_template_and_its_score() -> None:
    task = gym(prompt="Q: {question}\nA:")
    prompt = task.train_prompt(0, 3)
    entry = prompt.solution
    assert prompt.text == f"Q: {entry['question']}\nA:" and prompt.answer is None and prompt.index == 3
    # chain_sum takes 7 and 7.0 and +7 alike, and gives a right number among other words the share of its length.
    right = entry["answer"]
    assert [task.score(prompt, response) for response in (right, f" {right}.0\n", "no idea")] == [1.0, 1.0, 0.0]
    assert task.score(prompt, f"it is {right}!") == len(right) / len(f"it is {right}!")


def test_a_tagged_answer_is_what_stands_between_the_tags() -> None:
    task = gym(answer="tagged")
    prompt = task.train_prompt(0, 0)
    right = prompt.solution["answer"]
    assert task.score(prompt, f"Let me think. 1 + 1 = 2. <answer>{right}</answer> So it is.") == 1.0
    assert task.score(prompt, right) == 0.0  # no tags, no answer


def test_the_stream_is_indexed_and_another_seed_has_another() -> None:
    task = gym()
    forwards = [task.train_prompt(1, index).text for index in range(600)]  # past the first block of 512
    again = gym()
    assert [again.train_prompt(1, index).text for index in reversed(range(600))] == forwards[::-1]
    assert [again.train_prompt(2, index).text for index in range(600)] != forwards
    assert len(set(forwards)) > 590


def test_held_out_questions_never_occur_in_training() -> None:
    # Two digits and a sign: 10 * 10 * 2 = 200 questions in all, of which training meets nearly every other one.
    task = gym(parameters=SUMS, held_out=50)
    held_out = [words(prompt.solution["question"]) for prompt in task.eval_prompts(50, seed=0)]
    trained = {words(task.train_prompt(0, index).solution["question"]) for index in range(1500)}
    assert len(set(held_out)) == 50 and len(trained) == 150
    assert trained.isdisjoint(held_out)
    first = [prompt.text for prompt in task.eval_prompts(10, seed=0)]
    assert [prompt.text for prompt in task.eval_prompts(10, seed=0)] == first
    assert [prompt.text for prompt in task.eval_prompts(10, seed=1)] != first


@pytest.mark.parametrize(
    "generator",
    # One with parameters that are lists, those that prepare a whole data set, one without an answer of its own.
    ["letter_counting", "acre", "gsm_symbolic", "list_functions", "word_ladder", "graph_color"],
)
def test_generators_of_every_kind(generator: str) -> None:
    task = gym(generator, held_out=4)
    prompts = [*task.eval_prompts(4, 0), *(task.train_prompt(0, index) for index in range(4))]
    assert len({prompt.text for prompt in prompts}) == 8
    again = pickle.loads(pickle.dumps(prompts[5]))  # to the processes that score
    assert 0 <= task.score(again, str(again.solution["answer"])) <= 1


def test_several_generators_in_one() -> None:
    datasets = [
        {"name": "chain_sum", "weight": 1.0, "config": SUMS},
        {"name": "gcd", "weight": 1.0, "config": {}},
    ]
    task = gym("composite", parameters={"datasets": datasets})
    prompts = [task.train_prompt(0, index) for index in range(20)]
    kinds = {prompt.solution["metadata"]["source_dataset"] for prompt in prompts}
    assert kinds == {"chain_sum", "gcd"}
    assert all(task.score(prompt, prompt.solution["answer"]) == 1 for prompt in prompts)


def test_questions_drawn_from_sets_of_text_are_the_same_in_every_process_of_a_sweep() -> None:
    from harness.worker import environment

    code = (
        "from harness.tasks.config import ReasoningGymConfig as C; from harness.tasks import make_task; "
        "print(make_task(C(generator='isomorphic_strings', held_out=4)).train_prompt(0, 0).text)"
    )

    def question(**variables: str) -> str:
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | variables
        )
        return run.stdout

    in_a_sweep = question(**environment(1))
    assert question(**environment(1)) == in_a_sweep
    assert question(PYTHONHASHSEED="1") != in_a_sweep  # so the setting does what it is there for


def test_wrong_settings() -> None:
    assert refusal(generator="chain_sums") == "task.generator: 'chain_sums' does not exist; did you mean chain_sum?"
    assert (
        refusal(parameters={"max_term": 3}) == "task.parameters.max_term: unknown to chain_sum; did you mean max_terms?"
    )
    assert refusal(parameters={"seed": 3}) == (
        "task.parameters.seed: the seeds of the sweep decide it; needs to be left out"
    )
    assert refusal(parameters={"min_terms": 5, "max_terms": 2}) == (
        "task.parameters: chain_sum refuses {'min_terms': 5, 'max_terms': 2}: max_terms must be >= min_terms"
    )
    # 200 questions in all: 20 * 400 draws find every one of them.
    assert refusal(parameters=SUMS, held_out=400) == (
        "task.held_out: 400; 8000 questions of chain_sum hold 200 different ones, and training needs its share of them: "
        "set it to at most 100"
    )
    assert refusal(parameters=SUMS, held_out=200).endswith("200 leaves training no question of chain_sum; needs fewer")
    with pytest.raises(InputError, match=r"evaluation.num_prompts: 17; task.held_out keeps 16 questions"):
        gym().eval_prompts(17, 0)
    with pytest.raises(InputError, match=r"task.prompt: 'What\?'; needs \{question\} in it exactly once"):
        ReasoningGymConfig(generator="gcd", prompt="What?")


def test_the_trials_of_a_process_share_the_held_out_questions() -> None:
    gym(held_out=7).eval_prompts(7, 0)
    before = held_out_entries.cache_info().misses
    gym(held_out=7).eval_prompts(7, 3)
    assert held_out_entries.cache_info().misses == before


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'batch-invariance\[tasks\]'"):
        check_generator("gcd", {})
