"""Seeded mutations of every file of a small sweep: one sentence and exit code 2, or a report without NaN."""

import json
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis import write
from analysis.__main__ import main
from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep

TINY = SweepTruth(
    [ArmTruth(8), ArmTruth(32, 1.2), ArmTruth(32, 1.5, lr_rule="fixed")],
    reference_samples=1500, num_seeds=2, every_samples=512, budget_samples=4096, timing_rounds=2, with_noise_metrics=True,
)  # fmt: skip
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 0.5, 7, 1e308, 1e99, 1e-320, 10**400, float("nan"), float("inf"), "", "0.5", "[/bold]",
    "<script>", "$x_{", "a\nb", "\x1b[31m", "\ud800", "../x", "..", [], [1], {}, {"a": 1}, "auto",
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value in a JSON value but itself; of a list the first three items."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def mutate(value: Any, rng: random.Random) -> Any:
    """The value with one of its parts gone, replaced or joined by another."""
    found = list(places(value))
    if not found:
        return rng.choice(HOSTILE)
    *path, last = rng.choice(found)
    parent = value
    for key in path:
        parent = parent[key]
    if rng.random() < 0.2:
        del parent[last]
    elif rng.random() < 0.2 and isinstance(parent, dict):
        parent[rng.choice(["extra", "train_batch", "$x"])] = rng.choice(HOSTILE)
    else:
        parent[last] = rng.choice(HOSTILE)
    return value


def mutate_object(path: Path, rng: random.Random) -> None:
    path.write_text(json.dumps(mutate(json.loads(path.read_text()), rng)))


def mutate_lines(path: Path, rng: random.Random) -> None:
    lines = path.read_text().splitlines()
    how = rng.choice(["values", "values", "drop", "repeat", "shuffle", "cut", "junk", "only"])
    if how == "values":
        for place in rng.sample(range(len(lines)), rng.choice([1, 5, len(lines)])):
            lines[place] = json.dumps(mutate(json.loads(lines[place]), rng))
    elif how == "drop":
        lines = [line for line in lines if rng.random() < 0.5]
    elif how == "repeat":
        lines += lines[len(lines) // 2 :]
    elif how == "shuffle":
        rng.shuffle(lines)
    elif how == "cut":
        lines = [*lines[: rng.randrange(len(lines))], '{"kind": "ev']
    elif how == "junk":
        lines += ["[1]", "null", "{}", "[" * 100_000, "1" * 10_000, "\x00"]
    else:
        lines = [line for line in lines if f'"{rng.choice(["train", "eval"])}"' in line]
    path.write_text("\n".join(lines))


def take_away(path: Path, rng: random.Random) -> None:
    path.unlink()
    if rng.random() < 0.3:
        path.mkdir()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("hostile") / "whole", TINY)


def refuse(name: str) -> None:
    raise AssertionError(f"{name} in report.json")


@pytest.mark.parametrize("block", range(2))
def test_a_mutated_sweep_is_a_sentence_or_a_report(
    whole: Path, tmp_path: Path, block: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "draw_all", lambda report, tables, folder: [])
    monkeypatch.setattr(write, "captions", lambda report: [])
    codes = []
    for seed in range(50 * block, 50 * block + 50):
        rng = random.Random(seed)
        sweep = shutil.copytree(whole, tmp_path / str(seed))
        for _ in range(rng.choice([1, 1, 2, 4])):
            damage(sweep, rng)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            codes.append(main(["report", str(sweep), *rng.choice([[], [], ["--target", "auto"], ["--target", "0.5"]])]))
        said = capsys.readouterr().err.splitlines()
        assert codes[-1] == (2 if said else 0) and all(line.startswith("error: ") for line in said), seed
        if (sweep / "report").exists():
            json.loads((sweep / "report/report.json").read_text(), parse_constant=refuse)
        else:
            assert len(said) == 1, seed
    assert {0, 2} == set(codes)


def damage(sweep: Path, rng: random.Random) -> None:
    trial = rng.choice(sorted((sweep / "trials").iterdir()))
    metrics, outcome = trial / "metrics.jsonl", trial / "outcome.json"
    ways: list[tuple[Callable[[Path, random.Random], None], Path]] = [
        (mutate_object, sweep / "plan.json"), (mutate_object, outcome), (mutate_object, trial / "provenance.json"),
        (mutate_lines, metrics), (mutate_lines, metrics), (mutate_lines, sweep / "timing.jsonl"),
        (take_away, metrics), (take_away, outcome), (take_away, sweep / "timing.jsonl"),
    ]  # fmt: skip
    way, path = rng.choice(ways)
    if path.is_file():
        way(path, rng)


def test_markup_in_any_file_is_text_in_the_report(whole: Path, tmp_path: Path) -> None:
    """Every text, and the name of every metric and field that the report does not know, is an element that would load."""
    sweep, bait = shutil.copytree(whole, tmp_path / "baited"), '"><img src=x onerror=alert(1)><script>alert(1)</script>'

    def baited(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: baited(item) for key, item in value.items()} | {bait: bait}
        return bait if value is None else value

    for path in [*sweep.rglob("metrics.jsonl"), sweep / "timing.jsonl"]:
        lines = [json.dumps(baited(json.loads(line)) | {"note": bait}) for line in path.read_text().splitlines()]
        path.write_text("\n".join([*lines, json.dumps({"round": 1, "arm": bait}), json.dumps({"kind": bait})]) + "\n")
    for path in sweep.rglob("provenance.json"):
        path.write_text(json.dumps(dict.fromkeys(("commit", "python", "packages", "hardware"), bait)))
    first = sorted((sweep / "trials").iterdir())[0]
    (first / "outcome.json").write_text(json.dumps({"status": "failed", "reason": bait}))
    assert main(["report", str(sweep)]) == 0
    page = (sweep / "report" / "report.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in page  # the reason is shown
    assert "<script" not in page and "<img src=x" not in page
