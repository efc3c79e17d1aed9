"""Scores in processes: a rule that raises, hangs or kills its process costs one response its reward, and is counted."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from harness.rewards import ScorerInPlace, ScorerProcesses, Scores, make_scorer
from harness.tasks import make_task
from harness.tasks.config import MathConfig, ReasoningGymConfig, ReverseDigitsConfig
from harness.tasks.digits import ReverseDigits
from harness.types import Prompt
from tests.harness.fragile import Obedient

ROOT = Path(__file__).parents[2]
MATH = MathConfig.model_validate({"train": [{"data": "data.jsonl"}]})  # scoring reads no file
HANGS = "\\boxed{9^{9^{9}}}"
"""369 million digits, which the arithmetic underneath multiplies out without letting go of the process."""


@pytest.fixture(scope="module")
def scorer() -> Iterator[ScorerProcesses]:
    made = ScorerProcesses(partial(make_task, MATH), limit_s=0.5, num_processes=2)
    yield made
    made.close()


def score(scorer: ScorerProcesses, *answers_and_responses: tuple[str, str]) -> Scores:
    prompts = [Prompt(index, "?", solution=answer) for index, (answer, _) in enumerate(answers_and_responses)]
    return scorer.score(prompts, [response for _, response in answers_and_responses])


def test_scores_come_back_in_their_places(scorer: ScorerProcesses) -> None:
    found = score(scorer, *((str(n), f"\\boxed{{{n - n % 2}}}") for n in range(20)))
    np.testing.assert_array_equal(found.scores_S, [1.0, 0.0] * 10)  # even numbers are right
    assert (found.num_errors, found.num_timeouts) == (0, 0)


def test_a_response_that_hangs_gets_nothing_and_stops_nobody(
    scorer: ScorerProcesses, caplog: pytest.LogCaptureFixture
) -> None:
    found = score(scorer, ("5", "5"), ("5", HANGS), ("6", "6"), ("7", HANGS), ("8", "8"))
    np.testing.assert_array_equal(found.scores_S, [1, 0, 1, 0, 1])
    assert (found.num_errors, found.num_timeouts) == (0, 2)
    assert [record.message for record in caplog.records] == [
        "the score of a response to prompt 1 counts as 0: took longer than task.score_limit_s 0.5"
    ]
    assert score(scorer, ("5", "5")).scores_S.tolist() == [1]  # and others are scored after it


def test_a_rule_that_raises_is_counted(scorer: ScorerProcesses, caplog: pytest.LogCaptureFixture) -> None:
    found = score(scorer, ("", "5"), ("5", "5"), ("", "6"))
    np.testing.assert_array_equal(found.scores_S, [0, 1, 0])
    assert (found.num_errors, found.num_timeouts) == (2, 0)
    assert [record.message for record in caplog.records] == [
        "the score of a response to prompt 0 counts as 0: ValueError: the answer '' is no mathematics"
    ]


def test_a_score_is_a_number_within_0_to_1_from_a_process_that_lives() -> None:
    with closing(ScorerProcesses(partial(Obedient, 3), limit_s=0.1, num_processes=1)) as scorer:
        responses = ["1", "die", "nan", "0.25", "inf", "1.5", "-0.5", "words", "wait", "0"]
        found = scorer.score([Prompt(0, "?")] * len(responses), responses)
    np.testing.assert_array_equal(found.scores_S, [1, 0, 0, 0.25, 0, 0, 0, 0, 0, 0])
    assert (found.num_errors, found.num_timeouts) == (6, 1)


def test_a_task_that_cannot_be_made_there_ends_the_trial() -> None:
    with pytest.raises(BrokenProcessPool):
        ScorerProcesses(partial(ReverseDigits, 3, "too many"), limit_s=1, num_processes=1)  # type: ignore[arg-type]


def test_digits_are_scored_in_place_and_words_are_not() -> None:
    digits = ReverseDigitsConfig(num_digits=3)
    scorer = make_scorer(make_task(digits), digits, 4)
    assert isinstance(scorer, ScorerInPlace)
    found = scorer.score([Prompt(0, "123=", "321")] * 2, ["321", "123"])
    assert (found.scores_S.tolist(), found.num_errors, found.num_timeouts) == ([1, 0], None, None)
    words = ReasoningGymConfig(generator="gcd", held_out=1)
    task = make_task(words)
    prompt = task.train_prompt(0, 0)
    with closing(make_scorer(task, words, 1)) as processes:
        assert isinstance(processes, ScorerProcesses)
        found = processes.score([prompt] * 2, [prompt.solution["answer"], "no"])
    assert (found.scores_S.tolist(), found.num_errors, found.num_timeouts) == ([1, 0], 0, 0)


def test_the_processes_compute_nothing_and_end_with_the_trial() -> None:
    """A trial that is killed while a score hangs leaves no process behind, whatever that score is doing."""
    program = """
import multiprocessing, os, sys, time
import harness.rewards as rewards
from tests.harness.test_rewards import HANGS, MATH, Prompt, make_task
print(sorted({"torch", "transformers", "ray"} & sys.modules.keys()))
scorer = rewards.make_scorer(make_task(MATH), MATH, 1)
scorer.pool.schedule(rewards._score, (Prompt(0, "?", solution="5"), HANGS, 2.0))
time.sleep(0.5)
print(*[child.pid for child in multiprocessing.active_children()], flush=True)
os.kill(os.getpid(), 9)
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    heavy, pids = run.stdout.splitlines()
    assert heavy == "[]" and pids
    deadline_s = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids.split()):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
