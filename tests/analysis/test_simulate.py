"""The small form of the coverage simulation: the intervals hold the truth, the estimator has no bias to speak of."""

import math

import pytest

from analysis.simulate import CELLS, Cell, simulate

SWEEPS = 200
# 0.95 less three standard errors, 0.904, and a little for reading the worst of three arms.
LIMIT = 0.95 - 3 * math.sqrt(0.95 * 0.05 / SWEEPS) - 0.01


@pytest.mark.parametrize(
    "cell",
    [
        Cell(3, "smooth", "coarse", 0.0),
        Cell(3, "noisy", "coarse", 0.4),
        Cell(5, "noisy", "fine", 0.0),
        Cell(5, "wavy", "coarse", 0.2),
        Cell(10, "wavy", "fine", 0.0),
        Cell(10, "noisy", "coarse", 0.4),
    ],
    ids=lambda cell: f"{cell.num_seeds}-{cell.curve}-{cell.grid}-{cell.censored_frac}",
)
def test_intervals_hold_the_truth(cell: Cell) -> None:
    assert cell in CELLS
    found = simulate(cell, SWEEPS)
    assert min(found.r_N, found.r_q, found.r_T, found.slope) >= LIMIT
    assert found.censored == pytest.approx(cell.censored_frac, abs=0.11)
    if cell.censored_frac == 0:
        assert abs(found.bias) < 0.015


def test_more_seeds_make_narrower_intervals() -> None:
    """Widths fall about as 1 / sqrt(n), faster while t is still large: 1.5 at three seeds, 1.25 at ten."""
    widths = [simulate(Cell(n, "noisy", "fine", 0.0), 40).width for n in (3, 5, 10)]
    assert widths[0] > widths[1] > widths[2]
    assert widths[0] == pytest.approx(1.54, abs=0.12) and widths[2] == pytest.approx(1.24, abs=0.05)
