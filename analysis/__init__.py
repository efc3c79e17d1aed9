"""Reads results/ and answers: how many more samples does a batch need, how much faster does it run, is it worth it.

    import analysis
    sweep = analysis.load_sweep("results/default")   # tidy tables, see analysis.Sweep
    results = analysis.analyse(sweep)                # report.json as a dict, tables as frames, see analysis.Results
    results.tables["arms"][["train_batch", "r_N", "r_N_low", "r_N_high", "r_q", "r_T", "verdict"]]

For single steps: `samples_to_target` takes a curve as arrays, `log_ratio` two samples of log N*, `Study` and `Scales`
hold the results of a sweep as objects. Nothing of harness is imported; results/README.md describes the files read.
"""

from analysis.curves import Curve, curves_of
from analysis.errors import InputError
from analysis.load import Sweep, load_sweep
from analysis.penalty import Interval, LogSample, log_ratio, pooled_spread
from analysis.results import Results, analyse
from analysis.scales import Scales
from analysis.study import Study
from analysis.target import Crossing, samples_to_target

__all__ = [
    "Crossing",
    "Curve",
    "InputError",
    "Interval",
    "LogSample",
    "Results",
    "Scales",
    "Study",
    "Sweep",
    "analyse",
    "curves_of",
    "load_sweep",
    "log_ratio",
    "pooled_spread",
    "samples_to_target",
]
