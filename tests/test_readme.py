"""The README says what the committed report says."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REPORT = json.loads((ROOT / "results" / "reference" / "default" / "report.json").read_text(encoding="utf-8"))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def ratio(value: dict[str, object] | float, digits: int = 2) -> str:
    """A ratio with its interval, or its lower bound, as the README prints it."""
    assert isinstance(value, dict)
    low, high = value["ci95"]  # type: ignore[misc]
    if value["estimate"] is None:
        return f"> {low:.{digits}f}"
    return f"{value['estimate']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def test_the_table_is_that_of_the_committed_report() -> None:
    lines = README.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("| B | rate |"))
    rows = {tuple(cells(line)[:2]): cells(line)[2:] for line in lines[head + 2 : head + 2 + len(REPORT["arms"])]}
    assert len(rows) == len(REPORT["arms"]) == 11
    for arm in REPORT["arms"]:
        samples, r_n, r_q, r_t, aligned, verdict = rows[f"{arm['train_batch']:,}", arm["lr_rule"]]
        is_reference = arm["verdict"] == "reference"
        censored = arm["num_censored"] > 0
        assert samples == ("not in budget" if censored else f"{arm['samples_to_target']['estimate']:,.0f}")
        assert r_n == ("1" if is_reference else ratio(arm["r_N"]))
        assert r_q == f"{arm['r_q']:.2f}"
        assert r_t == ("1" if is_reference else ratio(arm["r_T"]))
        assert aligned == {True: "yes", False: "not shown", None: "-"}[arm["aligned"]]
        assert verdict == arm["verdict"].replace("_", " ")


def test_every_file_and_folder_it_links_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_command_of_the_makefile_it_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", README, flags=re.DOTALL))
    names = set(re.findall(r"\bmake ([a-z-]+)", code))
    assert names >= {"sweep", "test"}
    for name in names:
        assert re.search(rf"^{name}:", makefile, flags=re.MULTILINE), name
