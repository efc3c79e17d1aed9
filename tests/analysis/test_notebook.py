"""The notebook runs on any sweep, and is kept without outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.synthetic import STUDY, SweepTruth, write_sweep

NOTEBOOK = Path(__file__).parents[2] / "analysis/notebooks/curves.ipynb"


@pytest.mark.parametrize("other", [{}, {"OTHER_DIR": "second"}])
def test_the_notebook_runs_on_a_synthetic_sweep(tmp_path: Path, other: dict[str, str]) -> None:
    """Alone it compares the sweep with its own import, else with the other sweep."""
    sweep = write_sweep(tmp_path / "sweep", SweepTruth(STUDY.arms, num_seeds=2))
    if other:
        other = {"OTHER_DIR": str(write_sweep(tmp_path / "second", SweepTruth(STUDY.arms, num_seeds=2), seed=1))}
    environment = os.environ | {"SWEEP_DIR": str(sweep)} | other
    command = [sys.executable, "-m", "pytest", "--nbmake", "-p", "no:cacheprovider", str(NOTEBOOK)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_notebook_holds_no_outputs() -> None:
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
