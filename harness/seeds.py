"""Every random draw as a function of (seed, purpose, indices).

A draw never depends on how work is batched, ordered or resumed: it is looked up, not taken from a
stream. The hash is SplitMix64's output function (Steele, Lea & Flood 2014) folded over the indices;
a purpose is a name, so that two uses of one seed never share a number.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * MULTIPLIER_1
    state = (state ^ (state >> np.uint64(27))) * MULTIPLIER_2
    return state ^ (state >> np.uint64(31))


def hash64(seed: int, purpose: str, *indices: Any) -> NDArray[np.uint64]:
    """64 random bits for each element of the broadcast `indices` (integers or integer arrays).

    >>> int(hash64(0, "sample", 3, 1)) == int(hash64(0, "sample", np.array([2, 3]), 1)[1])
    True
    >>> int(hash64(0, "sample", 3, 1)) == int(hash64(0, "evaluate", 3, 1))
    False
    """
    name = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    state = np.frombuffer(name, dtype=np.uint64)[0]
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is the point
        for index in indices:
            state = _mix((state ^ np.asarray(index).astype(np.uint64)) + GOLDEN_GAMMA)
    return np.asarray(state)


def uniforms(seed: int, purpose: str, *indices: Any) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), 53 bits each, for each element of the broadcast `indices`."""
    return (hash64(seed, purpose, *indices) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def torch_seed(seed: int, purpose: str) -> int:
    """A seed for torch.manual_seed where a library draws for itself (weight initialisation)."""
    return int(hash64(seed, purpose, 0) >> np.uint64(1))
