"""Reads results/ and answers: how many more samples does a batch need, how much faster does it run, is it worth it.

import analysis
sweep = analysis.load_sweep("results/default")   # tidy pandas tables, see analysis.Sweep
"""

from analysis.errors import InputError
from analysis.load import Sweep, load_sweep

__all__ = ["InputError", "Sweep", "load_sweep"]
