"""Simulated learning curves with known N*, and the coverage of the intervals over many simulated sweeps."""

from __future__ import annotations

import numpy as np

START, TARGET, PLATEAU = 0.28, 0.7, 0.9


def true_score(progress: np.ndarray) -> np.ndarray:
    """J at progress = N / N*: an exponential approach from START to PLATEAU that is TARGET at 1.

    >>> true_score(np.array([0.0, 1.0])).round(6).tolist()
    [0.28, 0.7]
    """
    rate = np.log((PLATEAU - START) / (PLATEAU - TARGET))
    return np.asarray(PLATEAU - (PLATEAU - START) * np.exp(-rate * np.asarray(progress)))


def evaluation_grid(train_batch: int, every_samples: int, budget_samples: int) -> np.ndarray:
    """The first update boundary at or after each multiple of every_samples, up to the budget.

    >>> evaluation_grid(1536, 1024, 6000).tolist()
    [0, 1536, 3072, 4608, 6144]
    """
    last = -(-budget_samples // train_batch) * train_batch
    multiples = np.arange(0, last + 1, every_samples)
    return np.unique(-(-multiples // train_batch) * train_batch)
