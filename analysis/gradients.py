"""Gradient norms against the batch, and the noise scale.

E |g_B|^2 = |G|^2 + tr(S) / B (McCandlish et al., arXiv:1812.06162): the norm falls as B^(-1/2) below the noise scale
B_noise = tr(S) / |G|^2 and is flat above it. |G|^2 and tr(S) are averaged separately, then divided: the ratio of
single estimates is badly biased. Norms are those before clipping; what was not recorded is missing, never 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import t as student

from analysis.penalty import Interval, Mean, mean_of


@dataclass(frozen=True)
class NoiseScale:
    """B_noise in responses with its parts; `flag` says why the estimate or its interval is missing."""

    interval: Interval
    signal_sq: float | None
    trace: float | None
    flag: str | None = None


def rms_by_trial(updates: pd.DataFrame, metric: str, window_samples: float) -> pd.Series:
    """Root mean square of a norm over the updates whose policy had seen fewer than window_samples, by (arm, seed).

    One window in samples for all arms: the gradient shrinks as the policy learns, so arms are compared at equal N.
    Every update counts B samples, so the mean over updates is one over samples. Trials without the metric are left out.
    """
    if metric not in updates:
        return pd.Series(dtype=float)
    inside = updates[updates["samples_before"] < window_samples].dropna(subset=[metric])
    squares = inside.assign(square=inside[metric] ** 2).groupby(["arm", "seed"])["square"]
    return pd.Series(np.sqrt(squares.mean()))


def log_log_slope(train_batch_A: np.ndarray, norms_SA: np.ndarray) -> Mean:
    """Slope of log norm on log B: least squares per seed, then the mean over seeds.

    train_batch_A: B of the A >= 2 arms, not all equal. norms_SA: norms of S seeds, positive.

    >>> round(log_log_slope(np.array([64, 256]), np.array([[2.0, 1.0], [4.0, 2.0]])).value, 12)
    -0.5
    """
    x_A = np.log(train_batch_A) - np.log(train_batch_A).mean()
    slopes_S = np.log(norms_SA) @ x_A / (x_A @ x_A)
    return mean_of(slopes_S)


def two_batch_noise(
    small: float, small_norm_sq: np.ndarray | float, large: float, large_norm_sq: np.ndarray | float
) -> tuple[np.ndarray | float, np.ndarray | float]:
    """(|G|^2, tr S) from mean squared norms at two batches.

    |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b); tr S = (|g_b|^2 - |g_B|^2) / (1/b - 1/B).

    >>> two_batch_noise(8, 5.0, 32, 2.0)
    (1.0, 32.0)
    """
    signal_sq = (large * large_norm_sq - small * small_norm_sq) / (large - small)
    trace = (small_norm_sq - large_norm_sq) / (1 / small - 1 / large)
    return signal_sq, trace


def noise_scale(trace_S: np.ndarray, signal_sq_S: np.ndarray, level: float = 0.95) -> NoiseScale:
    """mean(tr S) / mean(|G|^2) over seeds with Fieller's interval for a ratio of means.

    trace_S, signal_sq_S: one mean over updates per seed.

    >>> noise_scale(np.array([32.0, 32.0]), np.array([-0.5, -1 / 6])).flag
    'not estimable: the mean |G|^2 is not positive'
    """
    if not len(trace_S):
        return NoiseScale(Interval(), None, None, "not recorded")
    trace, signal = float(trace_S.mean()), float(signal_sq_S.mean())
    if signal <= 0:
        return NoiseScale(Interval(), signal, trace, "not estimable: the mean |G|^2 is not positive")
    n, ratio = len(trace_S), trace / signal
    if ratio < 0:
        return NoiseScale(Interval(), signal, trace, "not estimable: the mean tr(S) is negative")
    if n == 1:
        return NoiseScale(Interval(ratio), signal, trace, "one seed: no interval")
    (v_trace, cov), (_, v_signal) = (np.cov(trace_S, signal_sq_S) / n).tolist()
    q = float(student.ppf((1 + level) / 2, n - 1)) ** 2
    a, b, c = signal**2 - q * v_signal, trace * signal - q * cov, trace**2 - q * v_trace
    if a <= 0:
        return NoiseScale(Interval(ratio), signal, trace, "|G|^2 is not told from 0: no finite interval")
    root = math.sqrt(max(b * b - a * c, 0.0))
    return NoiseScale(Interval(ratio, max((b - root) / a, 0.0), (b + root) / a), signal, trace)
