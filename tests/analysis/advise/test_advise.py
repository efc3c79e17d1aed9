"""Whole advices in folders: what is proposed in which order, what is advised, what is said, and what a judge says."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.advise.advice import load_advice
from analysis.advise.content import build_advice
from analysis.advise.proposals import propose
from tests.analysis.advise.advise_sweep import ARMS, BASE, RATES, TRUTH, begin, carry_out, name_of
from tests.analysis.synthetic import SweepTruth, write_sweep

REFERENCE, BEST = name_of(ARMS[0], BASE), name_of(ARMS[2], BASE)


def follow(folder: Path, truth: SweepTruth = TRUTH, rates: dict[float, float] = RATES) -> list[tuple[str, list[Any]]]:
    """Do what is proposed until nothing is; the stages with their items."""
    steps: list[tuple[str, list[Any]]] = []
    while True:
        stage, items = propose(load_advice(folder, workers=2))
        if not items:
            return steps
        assert len(steps) < 30, "it does not end"
        for item in items:
            carry_out(folder, item, truth, rates)
        steps.append((stage, items))


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, list[Any]]]]:
    folder = begin(tmp_path_factory.mktemp("results") / "x-advise")
    return folder, follow(folder)


def test_the_order_is_rate_reference_timing_branches_runs(followed: tuple[Path, list[tuple[str, list[Any]]]]) -> None:
    _, steps = followed
    stages = [stage for stage, _ in steps]
    assert stages[:4] == ["rate", "reference", "timing", "branches"] and set(stages[4:]) == {"runs"}
    tried = [(item["arm"], item["seed"]) for item in steps[0][1]]
    assert tried == [(name_of(ARMS[0], rate), 1000) for rate in (1e-4, 2e-4, 4e-4)]
    # The run of the file's rate is the first of the three seeds of the reference.
    assert [(item["arm"], item["seed"]) for item in steps[1][1]] == [(REFERENCE, 1001), (REFERENCE, 1002)]
    assert steps[2][1][0]["arms"] == [name_of(arm, BASE) for arm in ARMS]


def test_branches_start_at_a_quarter_and_the_half(followed: tuple[Path, list[tuple[str, list[Any]]]]) -> None:
    """N*/4 and N*/2 of about 4,500 on a grid of 512; max(N*/4, 4 B) samples in whole batches."""
    _, steps = followed
    items = steps[3][1]
    assert {item["at_samples"] for item in items} <= {1024, 1536, 2048, 2560}
    assert all(item["moments"] == "rescaled" and 700 < item["noise_scale"] < 1400 for item in items)
    for item in items:
        batch = int(item["arm"].split("-")[0][1:]) * 8
        assert item["samples"] % batch == 0 and item["samples"] >= 4 * batch
        assert item["trial"] == f"x-advise/trials/{REFERENCE}-s1000"


def test_the_fastest_is_advised(followed: tuple[Path, list[tuple[str, list[Any]]]]) -> None:
    """T is 0.64 at B = 128 and 0.61 at 256: either is within 10%; the intervals hold the truth."""
    folder, _ = followed
    content = build_advice(load_advice(folder))
    assert content["separated"] and content["stage"] == "done" and content["next"] == []
    assert content["advice"]["arm"] in (BEST, name_of(ARMS[1], BASE))
    assert content["rate"]["chosen"] == BASE
    for arm, truth in zip(ARMS, content["arms"], strict=True):
        true = arm.r_N / (arm.samples_per_s / ARMS[0].samples_per_s)
        low, high = truth["r_T"]["ci95"]
        assert low * 0.97 <= true <= high * 1.03
    by_name = {arm["arm"]: arm for arm in content["arms"]}
    assert by_name[BEST]["branch_r_N"]["estimate"] == pytest.approx(1.18, rel=0.15)


def test_cost_counts_branches_from_where_they_start(followed: tuple[Path, list[tuple[str, list[Any]]]]) -> None:
    folder, steps = followed
    cost = build_advice(load_advice(folder))["cost"]
    runs = sum(item["do"] == "run" for _, items in steps for item in items)
    branched = sum(item["samples"] for _, items in steps for item in items if item["do"] == "branch")
    assert cost["samples"] == pytest.approx(runs * TRUTH.budget_samples + branched, rel=0.01)
    assert cost["full_sweep_samples"] == 5 * len(ARMS) * TRUTH.budget_samples


def test_a_better_rate_is_followed_beyond_the_grid_and_its_arms_alone_are_run(tmp_path: Path) -> None:
    """Every doubling of the rate saves a third: 4e-4 is the last of the grid, 8e-4 is tried, 1.6e-3 is not planned."""
    folder = begin(tmp_path / "x-advise", rates=(1e-4, 2e-4, 4e-4, 8e-4), branch_points=0)
    steps = follow(folder, replace(TRUTH, reference_samples=3000.0), {1e-4: 1.5, 2e-4: 1.0, 4e-4: 0.67, 8e-4: 0.45})
    assert [(stage, [item["arm"] for item in items]) for stage, items in steps[:2]] == [
        ("rate", [name_of(ARMS[0], rate) for rate in (1e-4, 2e-4, 4e-4)]),
        ("rate", [name_of(ARMS[0], 8e-4)]),
    ]
    content = build_advice(load_advice(folder))
    assert content["rate"]["chosen"] == 8e-4 and content["rate"]["wanted"] == pytest.approx(1.6e-3)
    assert all(item["arm"].endswith("lr0.0008") for _, items in steps[2:] for item in items if item["do"] == "run")
    assert any("0.0016 was not tried" in sentence for sentence in content["unknown"])


def test_a_rate_that_is_hardly_better_is_not_taken(tmp_path: Path) -> None:
    """8% fewer samples, by one seed each, do not move the rate."""
    folder = begin(tmp_path / "x-advise", branch_points=0)
    for item in propose(load_advice(folder))[1]:
        carry_out(folder, item, replace(TRUTH, seed_sd=0.0), {1e-4: 1.5, 2e-4: 1.0, 4e-4: 0.92})
    assert load_advice(folder).rates.chosen == BASE


def test_a_reference_that_never_arrives_is_said(tmp_path: Path) -> None:
    """N* of every arm lies beyond the budget: no advice, and the procedure ends before it has run the whole sweep."""
    folder = begin(tmp_path / "x-advise", branch_points=0)
    steps = follow(folder, replace(TRUTH, reference_samples=45_000.0))
    content = build_advice(load_advice(folder))
    assert content["advice"] is None and not content["separated"] and content["next"] == []
    assert content["why"] == "no candidate is expected to reach the target within its budget"
    assert sum(item["do"] == "run" for _, items in steps for item in items) < 12


def test_the_page_and_the_console_say_it(
    followed: tuple[Path, list[tuple[str, list[Any]]]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = followed
    assert main(["advise", str(folder), "--workers", "2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("The probability that it is within 10% of the fastest candidate is") == 1
    content = json.loads((folder / "advice" / "advice.json").read_text())
    page = (folder / "advice" / "report.html").read_text()
    for text in (f"Use a batch of {content['advice']['train_batch']} responses", "of the whole sweep"):
        assert text in said and text in page
    assert {path.name for path in (folder / "advice" / "figures").iterdir()} == {
        "r_N.png",
        "r_N.svg",
        "r_T.png",
        "r_T.svg",
    }
    arms = pd.read_csv(folder / "advice" / "tables" / "arms.csv")
    assert list(arms["arm"]) == [name_of(arm, BASE) for arm in ARMS] and {"r_T", "r_T_low"} <= set(arms)


def judging(folder: Path, first_seed: int) -> Path:
    """The whole sweep on three other seeds, all at the file's rate."""
    begin(folder, rates=(BASE,))
    (folder / "advise.json").unlink()
    plan = json.loads((folder / "plan.json").read_text())
    plan["trials"] = [t for t in plan["trials"] if t["seed"] < 1003]
    for trial in plan["trials"]:
        trial["seed"] += first_seed - 1000
        trial["trial_id"] = f"{trial['arm']}-s{trial['seed']}"
    (folder / "plan.json").write_text(json.dumps(plan))
    for trial in plan["trials"]:
        carry_out(folder, {"do": "run", "arm": trial["arm"], "seed": trial["seed"]})
    carry_out(folder, {"do": "time", "arms": [name_of(arm, BASE) for arm in ARMS]})
    return folder


def test_a_judge_gives_the_regret_and_the_prediction_errors(
    followed: tuple[Path, list[tuple[str, list[Any]]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = followed
    judge = judging(tmp_path / "judge", 2000)
    assert main(["advise", str(folder), "--judge", str(judge), "--predict", str(judge)]) == 0
    found = json.loads((folder / "advice" / "judge.json").read_text())
    assert 1.0 <= found["regret"]["estimate"] <= 1.10 and found["regret"]["ci95"][0] >= 1.0
    assert found["share"] == pytest.approx(found["samples"] / (12 * TRUTH.budget_samples))
    assert "Judged by judge" in capsys.readouterr().out
    table = pd.read_csv(folder / "advice" / "tables" / "prediction.csv")
    assert set(table["source"]) == {"noise", "branches, rescaled", "both, rescaled"}
    own = table[(table["source"] == "noise") & (table["train_batch"] == 256)].iloc[0]
    # (256 + 1000) / (64 + 1000) = 1.18
    assert own["predicted"] == pytest.approx(1.18, rel=0.05) and abs(own["log_error"]) < 0.15


def test_a_judge_with_the_seeds_of_the_advice_is_refused(
    followed: tuple[Path, list[tuple[str, list[Any]]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = followed
    judge = judging(tmp_path / "judge", 1001)
    assert main(["advise", str(folder), "--judge", str(judge)]) == 2
    assert "the advice has seen its seeds 1001" in capsys.readouterr().err


def test_records_of_others_are_advised_on_and_what_is_not_known_is_said(tmp_path: Path) -> None:
    """No advise.json: an ordinary sweep, whose controls are left out, with two seeds an arm."""
    sweep = write_sweep(tmp_path / "s", replace(TRUTH, num_seeds=2))
    content = build_advice(load_advice(sweep))
    assert content["advice"]["arm"] in ("P16-G8-sqrt", "P32-G8-sqrt")
    assert any("nothing was run for this advice" in sentence for sentence in content["unknown"])
    assert all(item["do"] == "run" and item["seed"] >= 2 for item in content["next"])


def test_an_imported_sweep_is_advised_on(tmp_path: Path) -> None:
    """Three batches as tables with seconds: r_N 1, 1.1, 2 and q 1, 1.8, 2 make r_T 1, 0.61 and 1; no noise scale."""
    rng, logs = np.random.default_rng(0), []
    for prompts, r_N, q in ((4, 1.0, 100.0), (16, 1.1, 180.0), (64, 2.0, 200.0)):
        for seed in (0, 1):
            batch, needed = prompts * 4, 3000 * r_N * math.exp(0.05 * rng.standard_normal())
            steps = range(1, int(2 * needed / batch) + 1)
            lines = [f"{step},{min(0.9, 0.2 + 0.5 * step * batch / needed):.4f},{batch / q:.4f}" for step in steps]
            logs.append(tmp_path / f"p{prompts}-s{seed}.csv")
            logs[-1].write_text("\n".join(["step,score,seconds", *lines]) + "\n")
    out = tmp_path / "imported"
    for log in logs:
        prompts = log.stem.split("-")[0][1:]
        given = ["--num-prompts", prompts, "--group-size", "4", "--lr", str(1e-6 * math.sqrt(int(prompts) / 4))]
        assert main(["import", str(log), *given, "--target", "0.6", "--out", str(out)]) == 0
    assert main(["advise", str(out)]) == 0
    content = json.loads((out / "advice" / "advice.json").read_text())
    assert content["advice"]["num_prompts"] == 16 and content["advice"]["r_T"]["estimate"] == pytest.approx(
        0.61, rel=0.1
    )
    assert content["noise_scale"]["estimate"] is None
    assert any("noise scale of the gradient was not measured" in sentence for sentence in content["unknown"])


def test_wrong_input_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", str(tmp_path)]) == 2
    assert "has no plan.json" in capsys.readouterr().err
    folder = begin(tmp_path / "x-advise", tolerance=2.0)
    assert main(["advise", str(folder)]) == 2
    assert "tolerance is 2.0" in capsys.readouterr().err
    shutil.rmtree(folder)
    assert main(["advise", str(begin(folder)), "--workers", "0"]) == 2
    for damaged in ("", "{", "[]", "null"):  # its settings are not known: defaults might let the advice stand
        (folder / "advise.json").write_text(damaged)
        assert main(["advise", str(folder)]) == 2
        assert "advise.json: is no JSON object with settings" in capsys.readouterr().err


def test_an_advice_without_any_run_asks_for_the_first(tmp_path: Path) -> None:
    content = build_advice(load_advice(begin(tmp_path / "x-advise")))
    assert content["stage"] == "rate" and content["advice"] is None and len(content["next"]) == 3


def test_more_rounds_come_before_more_runs_where_speed_is_what_is_not_known(tmp_path: Path) -> None:
    """Rates that scatter by a factor of 1.5 from round to round: 10 rounds in all, then 15, and 25 at the most."""
    folder, noisy = begin(tmp_path / "x-advise"), replace(TRUTH, clock_sd=0.4)
    while (found := propose(load_advice(folder, workers=2)))[0] != "runs" and "rounds" not in found[1][0]:
        for item in found[1]:
            carry_out(folder, item, noisy)
    stage, [item] = found
    assert (stage, item["do"], item["rounds"]) == ("timing", "time", 10)
    assert item["arms"] == [name_of(arm, BASE) for arm in ARMS] and "speed is what keeps" in item["why"]
    asked = []
    while stage == "timing" and "rounds" in item:
        asked.append(item["rounds"])
        carry_out(folder, item, noisy)
        stage, items = propose(load_advice(folder, workers=2))
        item = items[0] if items else {}
    assert asked[:2] == [10, 15] and max(asked) <= 25
