"""Arms, seeds, rules and the curve of an imported sweep."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.errors import InputError
from analysis.importing.arms import Stored
from analysis.importing.plan import Choices, plan_of
from analysis.importing.run import ImportedRun
from analysis.importing.write import config_of
from tests.analysis.importing.test_write import RUN, update


def run(name: str, num_prompts: int = 4, scores: int = 5, **more: Any) -> ImportedRun:
    """A run of `scores` updates whose scores no other run has."""
    updates = tuple(update(step, 0.1 * step + hash_of(name)) for step in range(1, scores + 1))
    fresh = replace(RUN, name=name, source=Path(f"{name}.log"), num_prompts=num_prompts, updates=updates, lr=1e-6)
    return replace(fresh, **more)


def hash_of(name: str) -> float:
    return sum(map(ord, name)) / 1000


def planned(*runs: ImportedRun, **choices: Any) -> dict[str, Any]:
    return plan_of("mine", [Stored(one.name, config_of(one)) for one in runs], Choices(**choices))


def rows(plan: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(trial["trial_id"], trial["arm"], trial["seed"]) for trial in plan["trials"]]


def test_runs_of_one_batch_and_rate_are_the_seeds_of_an_arm() -> None:
    plan = planned(run("d", 8), run("c", 8), run("b", seed=7), run("a", seed=3))
    assert rows(plan) == [("a", "P4-G2", 3), ("b", "P4-G2", 7), ("c", "P8-G2", 0), ("d", "P8-G2", 1)]
    assert any(text.startswith("In P8-G2 no seeds of their own are stated") for text in plan["assumptions"])


def test_the_same_seed_twice_is_no_seed() -> None:
    assert rows(planned(run("a", seed=42), run("b", seed=42))) == [("a", "P4-G2", 0), ("b", "P4-G2", 1)]


def test_what_differs_within_a_batch_names_the_arm_and_is_an_axis() -> None:
    plan = planned(run("a", axes={"kl": 0.001}), run("b", axes={"kl": 0.01}), run("c", 8, axes={"kl": 0.001}))
    assert [row[1] for row in rows(plan)] == ["P4-G2-kl0.001", "P4-G2-kl0.01", "P8-G2"]
    assert [trial["axes"]["kl"] for trial in plan["trials"]] == [0.001, 0.01, 0.001]
    assert (
        "Besides the batch, runs differ in kl: 0.001 in P4-G2-kl0.001, 0.01 in P4-G2-kl0.01, 0.001 in P8-G2."
        in plan["assumptions"]
    )


def test_algorithms_are_told_apart() -> None:
    plan = planned(run("a", algorithm="ppo"), run("b", 8, algorithm="grpo"))
    assert [row[1] for row in rows(plan)] == ["P4-G2-ppo", "P8-G2-grpo"]


def test_a_mini_batch_that_grows_with_the_batch_is_no_other_setting() -> None:
    grows = planned(run("a", axes={"mini_batch_size": 4}), run("b", 8, axes={"mini_batch_size": 8}))
    assert not any("mini_batch_size" in text for text in grows["assumptions"])
    does_not = planned(run("a", axes={"mini_batch_size": 4}), run("b", 8, axes={"mini_batch_size": 16}))
    assert "Besides the batch, runs differ in mini_batch_size: 4 in P4-G2, 16 in P8-G2." in does_not["assumptions"]
    assert "mini_batch_size" not in does_not["trials"][0]["axes"]


@pytest.mark.parametrize(
    ("rates", "rules"),
    [
        ((1e-6, 2e-6, 4e-6), ["sqrt", "sqrt", "sqrt"]),  # B = 8, 32, 128: the root grows by 2
        ((1e-6, 4e-6, 16e-6), ["linear", "linear", "linear"]),
        ((1e-6, 1e-6, 1e-6), ["fixed", "fixed", "fixed"]),
        ((1e-6, 3e-6, 3e-6), ["other", "other", "other"]),
        ((None, None, None), ["unknown", "unknown", "unknown"]),
        ((1.0000000000000002e-06, 2.01e-6, 4e-6), ["sqrt", "sqrt", "sqrt"]),
    ],
)
def test_the_rule_of_the_rates_is_read_off_them(rates: tuple[float | None, ...], rules: list[str]) -> None:
    runs = [run(name, p, lr=lr) for name, p, lr in zip("abc", (4, 16, 64), rates, strict=True)]
    trials = planned(*runs)["trials"]
    assert [trial["axes"]["lr_rule"] for trial in trials] == rules
    assert trials[0]["axes"]["lr"] == (None if rates[0] is None else 1e-6)


def test_another_rate_at_the_same_batch_is_another_rule() -> None:
    plan = planned(run("a"), run("b", 16, lr=2e-6), run("c", 16, lr=1e-6))
    found = {trial["arm"]: trial["axes"]["lr_rule"] for trial in plan["trials"]}
    assert found == {"P4-G2": "sqrt", "P16-G2-lr2e-06": "sqrt", "P16-G2-lr1e-06": "fixed"}


def test_the_reference_is_the_smallest_batch_or_the_one_named() -> None:
    assert planned(run("b", 16), run("a"))["reference_arm"] == "P4-G2"
    assert planned(run("b", 16), run("a"), reference="P16-G2")["reference_arm"] == "P16-G2"
    with pytest.raises(InputError, match="--reference P9: no such arm; there are P16-G2, P4-G2"):
        planned(run("b", 16), run("a"), reference="P9")


def test_the_curve_is_the_first_score_with_enough_points_in_every_run() -> None:
    # Three validation points a run are too few; five training points are not.
    plan = planned(run("a"), run("b", 16))
    assert plan["target"] == {"metric": "train", "value": None}
    assert plan["assumptions"][0] == (
        "The curve is train, a training score, of the policy before each update, 5 points a run; val has fewer than 5; "
        "--score takes val instead."
    )
    assert planned(run("a"), run("b", 16), score="val", target=0.3)["target"] == {"metric": "val", "value": 0.3}
    few = planned(run("a", scores=4), run("b", 16))
    assert few["target"]["metric"] == "val"


def test_no_common_score_is_refused() -> None:
    other = replace(run("b", 16), updates=(), curves=("val",))
    with pytest.raises(InputError, match=r"no score is common to all runs \(a: train; b: val\)"):
        planned(run("a", evals=(), curves=("train",)), other)
    with pytest.raises(InputError, match="--score acc: not every run has it; all have val, train"):
        planned(run("a"), run("b", 16), score="acc")


def test_two_logs_of_one_run_are_refused() -> None:
    twin = replace(run("a"), name="c", source=Path("c.jsonl"))
    with pytest.raises(InputError, match=r"a\.log and .*c\.jsonl are one run"):
        planned(run("a"), run("b", 16), twin)


def test_an_arm_is_one_batch() -> None:
    with pytest.raises(InputError, match="arm big has runs with P = 4, G = 2 and with P = 16, G = 2"):
        planned(run("a", arm="big"), run("b", 16, arm="big"))


def test_readers_sentences_say_whose_they_are() -> None:
    plan = planned(
        run("a", seed=0, assumptions=("All said it.", "Only A lost a row.")),
        run("b", seed=1, assumptions=("All said it.",)),
        run("c", 16, assumptions=("All said it.", "An arm has it.")),
    )
    assert plan["assumptions"][-3:] == ["All said it.", "a: only A lost a row.", "P16-G2: an arm has it."]
