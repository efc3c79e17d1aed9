"""What is wrong with the command is told in one sentence before anything heavy starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.harness.advise.test_plan import SWEEP

ROOT = Path(__file__).parents[3]


def advise(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, which fails where torch or Ray is imported."""
    code = (
        "import sys; from harness.__main__ import main; code = main(['advise', *sys.argv[1:]]); "
        "heavy = {'torch', 'ray', 'transformers'} & sys.modules.keys(); sys.exit(f'imported {heavy}' if heavy else code)"
    )
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--budget", "2"], "--budget 2: needs a number with its unit, such as 2h, 45m, 90s or 600000samples"),
        (["--set", "advise.rates=[2]"], "advise.rates: [2.0]; needs 1, the rate of the file, among them"),
        (
            ["--set", "advise.branch_points=11"],
            "advise.branch_points: 11; needs a value of at least 0 and of at most 10",
        ),
        (
            ["--set", "advise.rate_seeds=10001"],
            "advise.rate_seeds: 10001; needs a value of at least 1 and of at most 10000",
        ),
        (["--set", "advise.seeds=3"], "advise.seeds: unknown"),
        (["--set", "arms=[{batch.num_prompts: 4}]"], "arms: an advice needs two or more to choose from"),
        (["--only", "P4"], "unrecognized arguments: --only P4"),
    ],
)
def test_wrong_input(tmp_path: Path, arguments: list[str], told: str) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(SWEEP))
    done = advise(str(file), "--results", str(tmp_path / "results"), *arguments)
    assert done.returncode == 2 and told in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_a_plan_that_has_changed_under_its_records_is_refused(tmp_path: Path) -> None:
    file, folder = tmp_path / "small.yaml", tmp_path / "small-advise" / "trials" / "P9-s0"
    file.write_text(yaml.safe_dump(SWEEP))
    folder.mkdir(parents=True)
    (folder / "outcome.json").write_text("{}")
    done = advise(str(file), "--results", str(tmp_path))
    assert done.returncode == 2 and "was made by another plan" in done.stderr
