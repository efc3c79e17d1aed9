"""Reads results/ and answers: how many more samples does a batch need, how much faster does it run, is it worth it.

    import analysis
    sweep = analysis.load_sweep("results/default")
    results = analysis.analyse(sweep)
    results.tables["arms"][["train_batch", "r_N", "r_N_low", "r_N_high", "r_q", "r_T", "verdict"]]

Whole sweeps. Samples are responses, times seconds, ratios are to the reference arm, limits are 95% unless said:

    load_sweep(folder, target=None) -> Sweep    tidy frames: arms, trials, evals (curves), updates, timing
    analyse(sweep) -> Results                   report.json as a dict, tables as frames
    compare_sweeps(first, second) -> dict       compare.json; compare_tables(it) -> its frames
    Study(sweep)                                N*, r_N, q, r_T, verdicts as methods; .at(target) for another target
    Scales(study)                               gradient slopes, noise scale, fits of N*(B), generation's plateau

Single steps, arrays in and out; K evaluations of a trial, S seeds:

    curves_of(sweep) -> {trial_id: Curve}       samples_K (increasing, responses), scores_K
    samples_to_target(samples_K, scores_K, target) -> Crossing       N* of a curve, or the side it is censored on
    LogSample(values_S, bounds)                 log N* of an arm's seeds, and log bounds of those that do not get there
    pooled_spread(samples) -> Spread            standard deviation over seeds on the log scale, pooled over arms
    log_ratio(arm, reference, spread) -> Interval    log r_N; `.map(math.exp)` makes it r_N

Every function says its shapes, units and conventions (`help(analysis.Sweep)`); results/README.md describes the files.
Wrong input raises InputError, one sentence. Nothing of harness is imported.
"""

from analysis.compare_words import compare_tables
from analysis.comparison import compare_sweeps
from analysis.curves import Curve, curves_of
from analysis.errors import InputError
from analysis.load import Sweep, load_sweep
from analysis.penalty import Interval, LogSample, Spread, log_ratio, pooled_spread
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
    "Spread",
    "Study",
    "Sweep",
    "analyse",
    "compare_sweeps",
    "compare_tables",
    "curves_of",
    "load_sweep",
    "log_ratio",
    "pooled_spread",
    "samples_to_target",
]
