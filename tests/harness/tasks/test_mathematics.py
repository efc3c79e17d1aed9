"""Questions from files in the layouts that data sets have, and answers compared as mathematics."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.errors import EnvironmentProblem, InputError
from harness.tasks import make_task, needs_hub
from harness.tasks.config import DataConfig, MathConfig
from harness.tasks.mathematics import Mathematics, same_answer

Rows = Sequence[Mapping[str, Any]]
GSM8K = [
    {"question": f"{n} + {n}?", "answer": f"{n} and {n} make <<{n}+{n}={2 * n}>>{2 * n}.\n#### {2 * n:,}"}
    for n in range(1, 1001)
]
DAPO = [
    {"prompt": [{"role": "user", "content": "What is 2^5?"}], "reward_model": {"ground_truth": "32", "style": "rule"}}
]
AIME = [{"id": 60, "problem": "Find $n$.", "answer": 204}, {"id": 61, "problem": "Find $m$.", "answer": "025"}]


def jsonl(path: Path, rows: Rows) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def parquet(path: Path, rows: Rows) -> Path:
    pd.DataFrame(list(rows)).to_parquet(path)
    return path


def task(*train: tuple[Path, str], **settings: Any) -> Mathematics:
    data = tuple({"data": str(path), "layout": layout} for path, layout in train)
    made = make_task(MathConfig(**{"train": data, **settings}))
    assert isinstance(made, Mathematics)
    return made


@pytest.mark.parametrize("write", [jsonl, parquet])
@pytest.mark.parametrize(
    ("layout", "rows", "expected"),
    [
        ("gsm8k", GSM8K[499:], ("500 + 500?", "1,000")),
        ("dapo", DAPO, ("What is 2^5?", "32")),
        ("dapo", [{"prompt": "What is 2^5?", "reward_model": {"ground_truth": "32"}}], ("What is 2^5?", "32")),
        ("aime", AIME[:1], ("Find $n$.", "204")),
        ("aime", AIME[1:], ("Find $m$.", "025")),
        ("plain", [{"question": " 1 + 1? ", "answer": 2.0}], ("1 + 1?", "2")),
    ],
)
def test_layouts(tmp_path: Path, write: Any, layout: str, rows: Rows, expected: tuple[str, str]) -> None:
    held_out = jsonl(tmp_path / "held_out.jsonl", [{"question": "?", "answer": "1"}])
    made = task(
        (write(tmp_path / f"data.{write.__name__}", rows), layout),
        held_out=({"data": str(held_out)},),
        prompt="{question}",
    )
    order = [made.train_prompt(0, index) for index in range(len(rows))]
    first = next(prompt for prompt in order if prompt.text == expected[0])
    assert (first.text, first.solution, first.answer) == (*expected, None)


def test_every_epoch_meets_every_question_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    made = task((jsonl(tmp_path / "data.jsonl", GSM8K[:100]), "gsm8k"))
    size = len(made._split[0])
    epochs = [[made.train_prompt(0, epoch * size + place).text for place in range(size)] for epoch in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) and len(set(epochs[0])) == size
    assert epochs[0] != epochs[1]
    other = [made.train_prompt(1, place).text for place in range(size)]
    assert sorted(other) == sorted(epochs[0]) and other != epochs[0]
    assert epochs[0][0].endswith("?\nReason step by step, and put the final answer within \\boxed{}.")


def test_one_question_in_eight_is_held_out_where_no_file_is(tmp_path: Path) -> None:
    made = task((jsonl(tmp_path / "data.jsonl", GSM8K), "gsm8k"))
    train, held_out = made._split
    assert len(train) + len(held_out) == 1000
    assert 95 <= len(held_out) <= 155  # 125, give or take three times sqrt(1000 * 1/8 * 7/8) = 10.5
    assert not {text for text, _ in train} & {text for text, _ in held_out}
    prompts = made.eval_prompts(90, seed=0)
    assert len({prompt.text for prompt in prompts}) == 90
    with pytest.raises(InputError, match=rf"num_prompts: 500; the task holds out {len(held_out)} questions"):
        made.eval_prompts(500, seed=0)


def test_questions_of_the_held_out_files_are_taken_out_of_training(tmp_path: Path) -> None:
    # The same question, spaced otherwise, in a file with another layout.
    held_out = jsonl(
        tmp_path / "test.jsonl", [{"problem": " 7  + 7?", "answer": 14}, {"problem": "8 + 8?", "answer": 16}]
    )
    train = jsonl(tmp_path / "train.jsonl", [*GSM8K[:10], *GSM8K[:10]])  # and everything twice
    made = task((train, "gsm8k"), held_out=({"data": str(held_out), "layout": "aime"},), prompt="{question}")
    assert sorted(prompt.text for prompt in made.eval_prompts(2, 0)) == ["7  + 7?", "8 + 8?"]
    texts = [made.train_prompt(0, index).text for index in range(8)]
    assert sorted(texts) == sorted(f"{n} + {n}?" for n in range(1, 11) if n not in (7, 8))


def test_several_files_are_one_set(tmp_path: Path) -> None:
    for year in (24, 25):
        parquet(tmp_path / f"aime{year}.parquet", [{"problem": f"{year}: {n}?", "answer": n} for n in range(3)])
    (tmp_path / "README.md").write_text("not data")
    folder = {"data": str(tmp_path), "files": "aime*.parquet", "layout": "aime"}
    made = task((jsonl(tmp_path / "train.jsonl", GSM8K[:5]), "gsm8k"), held_out=(folder,), prompt="{question}")
    expected = [f"{year}: {n}?" for year in (24, 25) for n in range(3)]
    assert sorted(prompt.text for prompt in made.eval_prompts(6, 0)) == expected


@pytest.mark.parametrize(
    ("answer", "response", "same"),
    [
        ("18", "so \\boxed{18}", True),
        ("18", "\\boxed{9}, and not 18", False),  # what is boxed counts
        ("18", "I think 17 or 18", True),  # else the last number
        ("\\frac{1}{2}", "\\boxed{0.5}", True),
        ("1,000", "It costs $1000.", True),
        ("025", "\\boxed{25}", True),
        ("x+1", "\\boxed{1+x}", True),
        ("(1,2)", "\\boxed{(2,1)}", False),
        ("18", "", False),
        ("18", "\\boxed{\\frac{1}{", False),
    ],
)
def test_answers_are_compared_as_mathematics(answer: str, response: str, same: bool) -> None:
    assert same_answer(answer, response) is same


def test_a_right_answer_that_is_no_mathematics_is_an_error_not_a_wrong_response() -> None:
    with pytest.raises(ValueError, match="the answer '' is no mathematics"):
        same_answer("", "18")


def test_the_longest_questions_come_first(tmp_path: Path) -> None:
    rows = [{"question": "x" * length, "answer": "1"} for length in (3, 50, 20)]
    held_out = jsonl(tmp_path / "held_out.jsonl", [{"question": "?", "answer": "1"}])
    made = task(
        (jsonl(tmp_path / "data.jsonl", rows), "plain"), held_out=({"data": str(held_out)},), prompt="{question}"
    )
    assert [len(prompt.text) for prompt in made.longest_prompts()] == [50, 20, 3]


def test_wrong_data(tmp_path: Path) -> None:
    def refusal(path: Any, layout: str = "gsm8k", **settings: Any) -> str:
        with pytest.raises(InputError) as caught:
            task((path, layout), **settings).train_prompt(0, 0)
        return str(caught.value)

    plain = jsonl(tmp_path / "plain.jsonl", [{"question": "1 + 1?", "answer": "2"}])
    assert refusal(plain) == (
        "task.train[0].layout: gsm8k needs question and answer; row 1 of plain.jsonl does not hold them so "
        "(ValueError: no #### before the answer)"
    )
    assert refusal(plain, "aime").endswith("row 1 of plain.jsonl does not hold them so (KeyError: 'problem')")
    assert "No match for FieldRef.Name(problem)" in refusal(parquet(tmp_path / "p.parquet", GSM8K[:1]), "aime")
    assert refusal(tmp_path / "nowhere.jsonl").endswith(
        "nowhere.jsonl' does not exist; it is no file, no folder and no hub id"
    )
    assert refusal("owner/name").startswith("task.train[0].revision: unset; owner/name is on the hub")
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty").endswith(f"'*' matches none in {tmp_path}/empty; needs .jsonl or .parquet files")
    (tmp_path / "table.csv").write_text("question,answer\n")
    assert refusal(tmp_path / "table.csv").endswith("needs .jsonl or .parquet files")
    (tmp_path / "broken.jsonl").write_text('{"question": "1?", "answer": "#### 1"}\n{"question": \n')
    assert f"{tmp_path}/broken.jsonl, line 2: not valid JSON" in refusal(tmp_path / "broken.jsonl")
    same = ({"data": str(plain)},)
    assert refusal(plain, "plain", held_out=same) == (
        "task.train: holds 1 questions, none apart from the held-out ones; needs others"
    )


def test_a_plan_does_not_ask_the_hub() -> None:
    remote = DataConfig(data="openai/gsm8k", revision="740312add88f781978c0658806c59bc2815b9866")
    assert needs_hub(MathConfig(train=(remote,)))
    assert not needs_hub(MathConfig(train=(DataConfig(data=str(Path(__file__))),)))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(
        EnvironmentProblem, match=r"math-verify cannot be imported .*; run: pip install 'batch-invariance\[tasks\]'"
    ):
        task((tmp_path, "plain"))
