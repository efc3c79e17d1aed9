"""Draws are looked up by what they are for, and are as random as draws from a stream."""

from __future__ import annotations

import numpy as np
from scipy import stats

from harness.seeds import hash64, uniforms


def test_a_draw_does_not_depend_on_what_is_drawn_with_it() -> None:
    alone = uniforms(3, "train", 0, 17, 2, 5)
    in_a_batch = uniforms(3, "train", 0, np.arange(16, 20), np.array([0, 2, 2, 1]), 5)
    assert alone == in_a_batch[1]
    assert len({float(alone), *in_a_batch.tolist()}) == 4


def test_every_index_and_the_seed_and_the_purpose_change_the_draw() -> None:
    draws = {
        int(hash64(seed, purpose, i, j))
        for seed in range(4)
        for purpose in ("train", "evaluate")
        for i in range(20)
        for j in range(20)
    }
    assert len(draws) == 4 * 2 * 20 * 20


def test_uniforms_are_uniform_and_neighbours_independent() -> None:
    draws = uniforms(0, "train", np.arange(400)[:, None], np.arange(50))
    assert stats.kstest(draws.ravel(), "uniform").pvalue > 0.01
    # Correlation of 20,000 neighbouring pairs along either index: standard deviation 0.007.
    assert abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.028
    assert abs(np.corrcoef(draws[:, :-1].ravel(), draws[:, 1:].ravel())[0, 1]) < 0.028
