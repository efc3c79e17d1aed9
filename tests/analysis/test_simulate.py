"""The small form of the coverage simulation: the intervals hold the truth, the estimator has no bias to speak of."""

import math

import pytest

from analysis.simulate import CELLS, Cell, least_coverage, simulate
from analysis.simulate_bias import BIAS_ROWS, SHARES, BiasRow, bias_of

SWEEPS = 200
# 0.95 less three standard errors, 0.904, and a little for reading the worst of three arms.
LIMIT = least_coverage(SWEEPS) - 0.01


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
        assert abs(found.bias) < 0.03
        assert math.isnan(found.slack_r_N)
    else:
        assert 1 < found.slack_r_N < 1.7


def test_more_seeds_make_narrower_intervals() -> None:
    """Widths fall about as 1 / sqrt(n), faster while t is still large: 1.5 at three seeds, 1.25 at ten.

    Five timing rounds of 3%, whatever the seeds: t_4 = 2.78, 2 * 2.78 * 0.03 * sqrt(2 / 5) = 0.105 on the log scale. The
    slope of four arms from 64 to 4,096: x_A @ x_A = 9.61, a standard deviation of 0.05 / sqrt(9.61) = 0.0161 a seed, whose
    t_2 over three seeds is 4.30: 2 * 4.30 * 0.0161 / sqrt(3) = 0.080 wide.
    """
    found = [simulate(Cell(n, "noisy", "fine", 0.0), 40) for n in (3, 5, 10)]
    widths = [each.width_r_N for each in found]
    assert widths[0] > widths[1] > widths[2]
    assert widths[0] == pytest.approx(1.54, abs=0.12) and widths[2] == pytest.approx(1.24, abs=0.05)
    assert found[0].width_r_q == pytest.approx(math.exp(0.105), abs=0.02)
    assert found[0].width_slope == pytest.approx(0.08, abs=0.02)
    assert found[0].width_r_T > found[0].width_r_N * 0.99


@pytest.mark.parametrize("row", BIAS_ROWS, ids=lambda row: f"{row.shape}-{row.eval_sd}")
def test_few_points_before_the_target_bias_N_by_less_than_3_percent(row: BiasRow) -> None:
    """For curves of every shape, up to B = N*/2; where there are ten points and more, exact scores give it exactly."""
    found = bias_of(row, 100)
    assert max(map(abs, found.means)) < 0.03
    if row.eval_sd == 0:
        assert max(map(abs, found.means[: SHARES.index(0.1) + 1])) < 0.001
