"""The brain is asked in a process of its own: what it says is checked, and what it complains of is passed on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.advise.brain import Answer, ask_analysis
from harness.errors import EnvironmentProblem, HarnessError, InputError


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A package `analysis` that does `body` when it is run."""
    package = folder / "packages" / "analysis"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(f"import json, os, sys\nfrom pathlib import Path\n{body}\n")
    monkeypatch.chdir(folder / "packages")


def test_it_is_told_where_and_how_many_and_its_answer_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
folder = Path(sys.argv[2]) / "advice"
folder.mkdir()
item = {"do": "time", "arms": sys.argv[1:], "why": os.environ["OMP_NUM_THREADS"], "new_field": 1}
(folder / "advice.json").write_text(json.dumps({"separated": False, "next": [item]}))
print("Take P8.")"""
    stand_in(tmp_path, monkeypatch, body)
    answer = ask_analysis(tmp_path, 3)
    assert answer.text == "Take P8.\n"
    assert answer.next[0]["arms"] == ["advise", str(tmp_path), "--workers", "3"] and answer.next[0]["why"] == "1"


@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        ("print('error: no plan', file=sys.stderr); sys.exit(2)", InputError, "no plan"),
        ("print('error: disk full', file=sys.stderr); sys.exit(3)", EnvironmentProblem, "disk full"),
        ("raise RuntimeError('what now')", EnvironmentProblem, "RuntimeError: what now"),
        ("sys.exit(5)", EnvironmentProblem, "exit code 5"),
        ("pass", EnvironmentProblem, "advice.json: cannot be read"),
    ],
)
def test_what_goes_wrong_there_is_told_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, kind: type[HarnessError], told: str
) -> None:
    stand_in(tmp_path, monkeypatch, body)
    with pytest.raises(kind, match=told):
        ask_analysis(tmp_path, 1)


def test_an_answer_needs_what_is_next() -> None:
    with pytest.raises(InputError, match="advice.json: next"):
        Answer.of(json.loads('{"separated": true}'))
    assert Answer.of({"next": []}).next == ()
