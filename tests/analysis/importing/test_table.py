"""Runs from tables, with and without a map of their columns."""

import json
from pathlib import Path

import pytest

from analysis.errors import InputError
from analysis.importing import table
from analysis.importing.run import Options


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_columns_are_mapped_and_seconds_kept_apart(tmp_path: Path) -> None:
    # P = 4, G = 2: update s ends at 8 s samples; acc is of the policy after it, rew of the one before it.
    log = write(
        tmp_path / "a.csv",
        "it,acc,rew,time,eval_time,gnorm,lr",
        "0,0.1,,,,,",
        "1,,0.125,3.0,,2.0,1e-6",
        "2,0.3,0.25,3.5,9.0,1.5,1e-6",
    )
    columns = {"step": "it", "score": "acc", "train_score": "rew", "seconds": "time", "evaluate_s": "eval_time"}
    options = Options(num_prompts=4, group_size=2, columns={**columns, "grad_norm": "gnorm"})
    (run,) = table.read(log, options)
    assert [(one.samples_trained, dict(one.scores)) for one in run.evals] == [(0, {"acc": 0.1}), (16, {"acc": 0.3})]
    assert [(u.step, u.samples_before, dict(u.scores)) for u in run.updates] == [
        (1, 0, {"rew": 0.125}),
        (2, 8, {"rew": 0.25}),
    ]
    assert [dict(u.seconds) for u in run.updates] == [{"undivided": 3.0}, {"undivided": 3.5}]
    assert run.updates[1].apart_s == {"evaluate": 9.0} and run.updates[1].metrics == {
        "reward/mean": 0.25,
        "grad/actor_norm": 1.5,
    }
    assert run.curves == ("acc", "rew") and run.lr == 1e-6


def test_steps_count_from_0_where_the_row_of_step_0_trains(tmp_path: Path) -> None:
    log = write(tmp_path / "a.csv", "step,train_score", "0,0.1", "1,0.2")
    (run,) = table.read(log, Options(num_prompts=4, group_size=2))
    assert [(u.samples_before, u.samples_trained) for u in run.updates] == [(0, 8), (8, 16)]


@pytest.mark.parametrize(("place", "values"), [("prompts_trained", (4, 8)), ("samples_trained", (8, 16))])
def test_prompts_and_samples_are_different_units(tmp_path: Path, place: str, values: tuple[int, int]) -> None:
    log = write(tmp_path / "a.csv", f"{place},score", *(f"{value},0.1" for value in values))
    (run,) = table.read(log, Options(num_prompts=4, group_size=2))
    assert [one.samples_trained for one in run.evals] == [8, 16] and run.updates == ()


def test_prompts_taken_for_samples_are_refused(tmp_path: Path) -> None:
    log = write(tmp_path / "a.csv", "samples_trained,score", "4,0.1", "8,0.2")
    with pytest.raises(InputError, match="grows by 4 responses .* less than the 8 .*map it as prompts_trained"):
        table.read(log, Options(num_prompts=4, group_size=2))


def test_one_table_holds_many_runs(tmp_path: Path) -> None:
    lines = [
        f"{arm},{seed},{prompts},2,{step},{0.1 * step + seed / 100}"
        for arm, prompts in (("small", 4), ("big", 8))
        for seed in (0, 1)
        for step in (1, 2, 3)
    ]
    log = write(tmp_path / "a.csv", "arm,seed,num_prompts,group_size,step,score", *lines)
    runs = table.read(log, Options())
    assert [(run.name, run.arm, run.seed, run.train_batch) for run in runs] == [
        ("small-0", "small", 0, 8),
        ("small-1", "small", 1, 8),
        ("big-0", "big", 0, 16),
        ("big-1", "big", 1, 16),
    ]
    assert [one.samples_trained for one in runs[3].evals] == [16, 32, 48]


def test_jsonl_has_nested_names_and_a_later_attempt(tmp_path: Path) -> None:
    rows = [{"step": step, "metrics": {"acc": acc}} for step, acc in ((1, 0.1), (2, 0.2), (3, 0.3), (2, 0.25))]
    log = write(tmp_path / "a.jsonl", *map(json.dumps, rows))
    (run,) = table.read(log, Options(num_prompts=4, group_size=2, columns={"score": "metrics/acc"}))
    assert [(one.samples_trained, one.scores["metrics/acc"]) for one in run.evals] == [(8, 0.1), (16, 0.25)]
    assert "2 rows were made again by a later attempt; the later ones count." in run.assumptions


def test_an_evaluation_in_a_row_of_its_own_takes_nothing_from_the_update(tmp_path: Path) -> None:
    log = write(tmp_path / "a.csv", "step,train_score,score", "1,0.1,", "1,,0.5", "2,0.2,")
    (run,) = table.read(log, Options(num_prompts=4, group_size=2))
    assert len(run.updates) == 2 and [one.samples_trained for one in run.evals] == [8]


@pytest.mark.parametrize(
    ("lines", "columns", "message"),
    [
        (["it,acc", "1,0.1"], {}, r"needs one column of step, .* has none of them.*\(its columns: it, acc\)"),
        (["step,acc", "1,0.1"], {}, "has neither score nor train_score"),
        (["step,score", "1,0.1"], {"score": "acc"}, "--columns score=acc: .* has no such column; it has step, score"),
        (["step,score", "1,0.1"], {"reward": "score"}, "--columns reward=...: there is no field 'reward'"),
        (["step,score"], {}, "a has no row with a step and a value"),
        (["step,score", "1.5,0.1"], {}, "has a step that is no count"),
        (["step,samples_trained,score", "1,8,0.1"], {}, "has both step and samples_trained"),
    ],
)
def test_what_a_table_lacks_is_one_sentence(
    tmp_path: Path, lines: list[str], columns: dict[str, str], message: str
) -> None:
    log = write(tmp_path / "a.csv", *lines)
    with pytest.raises(InputError, match=message):
        table.read(log, Options(num_prompts=4, group_size=1, columns=columns))


def test_the_batch_must_be_known(tmp_path: Path) -> None:
    log = write(tmp_path / "a.csv", "step,score", "1,0.1")
    with pytest.raises(InputError, match="does not say group_size, .*; give --group-size"):
        table.read(log, Options(num_prompts=4))


def test_what_tables_look_like(tmp_path: Path) -> None:
    assert table.looks_like(write(tmp_path / "a.csv", "step,score", "1,0.1"))
    assert table.looks_like(write(tmp_path / "b.jsonl", '{"samples_trained": 8, "score": 0.1}'))
    others = {"c.csv": "path,seed", "d.jsonl": "[1, 2]", "e.jsonl": "nonsense", "f.txt": "step,score", "g.csv": ""}
    assert not any(table.looks_like(write(tmp_path / name, text)) for name, text in others.items())
