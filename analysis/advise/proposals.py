"""What to run next: the first thing that is missing, in the order of what it costs and what everything else needs.

rate -> reference -> timing -> branches -> runs -> timing of the places in flight -> done. Timing comes before branches
because it costs no samples and says which arms could pay at all; for the same reason more of it comes before more runs,
where it is the speed that keeps two arms from being told apart.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from analysis.advise.advice import Advice, configured
from analysis.advise.branches import arm_key
from analysis.advise.decide import allocate
from analysis.advise.rates import DONE
from analysis.advise.read import folder_beside
from analysis.profile_file import read_profile

Stage = Literal["rate", "reference", "timing", "branches", "runs", "done"]
Item = dict[str, Any]
# An arm is branched up to this share of the reference's N*: beyond it a branch would be a whole run.
LARGEST_BRANCHED = 0.5
# Rounds of the timing pass that are added at a time, and the most there may be.
MORE_ROUNDS, MOST_ROUNDS = 5, 25
BRANCH_SHARE, BRANCH_BATCHES = 0.25, 4


def propose(advice: Advice) -> tuple[Stage, list[Item]]:
    """(what is being found out, the trials and measurements that would), nothing once the advice stands."""
    if not advice.settings.owned:
        items = _runs(advice)
        return ("runs" if items else "done"), items
    steps: list[tuple[Stage, Any]] = [
        ("rate", lambda: advice.rates.missing),
        ("reference", lambda: _reference(advice)),
        ("timing", lambda: _timing(advice)),
        ("branches", lambda: _branches(advice)),
        ("timing", lambda: _more_timing(advice)),
        ("runs", lambda: _runs(advice)),
        ("timing", lambda: _profile(advice)),
    ]
    for stage, missing in steps:
        if items := missing():
            return stage, items
    return "done", []


def _reference(advice: Advice) -> list[Item]:
    rows = advice.own.trials[advice.own.trials["arm"] == advice.reference].sort_values("seed")
    rows = rows[: advice.settings.reference_seeds]
    return [
        {
            "do": "run",
            "arm": advice.reference,
            "seed": int(row["seed"]),
            "trial": trial,
            "why": "a seed of the reference",
        }
        for trial, row in rows.iterrows()
        if row["status"] not in DONE
    ]


def _timing(advice: Advice) -> list[Item]:
    """Every candidate in one pass, so that they take turns."""
    arms = [candidate.arm for candidate in advice.arms]
    measured = set(advice.own.timing["arm"]) if len(advice.own.timing) else set()
    return (
        [] if set(arms) <= measured else [{"do": "time", "arms": arms, "why": "samples per second of every candidate"}]
    )


def _more_timing(advice: Advice) -> list[Item]:
    """More rounds while log q has more than half of the variance that keeps leader and challenger together."""
    decision = advice.decision
    if decision.separated or decision.leader is None or not decision.challengers:
        return []
    rounds = int(advice.own.timing["round"].nunique()) if len(advice.own.timing) else 0
    ends = [decision.timed.index(arm) for arm in (decision.leader, decision.challengers[0])]
    of_speed, of_time = (
        float((draws[:, ends[0]] - draws[:, ends[1]]).var()) for draws in (decision.log_q, decision.log_T_arrived)
    )
    if not 0 < rounds < MOST_ROUNDS or of_speed <= of_time / 2:
        return []
    arms = [candidate.arm for candidate in advice.arms]
    why = f"speed is what keeps {decision.leader} and {decision.challengers[0]} together"
    return [{"do": "time", "arms": arms, "rounds": rounds + MORE_ROUNDS, "why": why}]


def _branches(advice: Advice) -> list[Item]:
    """Branches of every promising arm from a reference run: the first at a third of its N* where one is asked for.

    None begins late: by then scores rise slowly, and the change of batch and rate is most of what is seen.
    """
    if advice.study is None or not advice.settings.branch_points or advice.settings.branches is None:
        return []
    parents = [t for t in advice.study.trials if t.arm == advice.reference and t.crossing.estimate]
    if not parents:
        return []
    parent = parents[0]
    needed, points = float(parent.crossing.estimate or 0.0), advice.settings.branch_points
    grid = _checkpoints(advice, parent.trial_id)
    grid = parent.curve.samples_K[parent.curve.samples_K > 0] if grid is None else grid
    shares = [(k + 1) / (points + 2) for k in range(points)]
    places = dict.fromkeys(float(grid[np.abs(grid - share * needed).argmin()]) for share in shares)
    promising, done = advice.decision.promising, _branched(advice)
    found: list[Item] = []
    learners = {c.learns_as for c in advice.arms if c.arm in promising and c.family == ()}
    for arm in sorted(learners, key=lambda name: advice.evidence.of(name).train_batch):
        batch = advice.evidence.of(arm).train_batch
        if arm == advice.reference or batch > LARGEST_BRANCHED * needed:
            continue
        near = needed / (2 * (points + 2))
        for place in places:
            if not any(other == arm and abs(at - place) <= near for other, at in done):
                found.append(_branch(advice, arm, parent.trial_id, parent.seed, place, needed))
    return found


def _checkpoints(advice: Advice, trial_id: str) -> np.ndarray | None:
    """Samples trained on at each checkpoint that a trial has kept; None where it has none."""
    folder = advice.sweep.path / "trials" / trial_id / "checkpoint"
    found = sorted(int(path.stem) for path in folder.glob("*.pt") if path.stem.isdecimal() and int(path.stem) > 0)
    return np.array(found, dtype=float) if found else None


def _branch(advice: Advice, arm: str, parent: str, seed: int, place: float, needed: float) -> Item:
    batch = advice.evidence.of(arm).train_batch
    length = math.ceil(max(BRANCH_SHARE * needed, BRANCH_BATCHES * batch) / batch) * batch
    noise = advice.evidence.noise
    return {
        "do": "branch",
        "arm": arm,
        "seed": seed,
        "trial": f"{advice.sweep.path.resolve().name}/trials/{parent}",
        "at_samples": int(place),
        "samples": int(length),
        "budget_samples": int(place + length),
        "moments": advice.settings.branch_moments if noise else "restored",
        "noise_scale": math.exp(noise.log_scale) if noise else None,
        "why": f"r_N of B = {batch:,} near {place:,.0f} samples",
    }


def _branched(advice: Advice) -> list[tuple[str, float]]:
    """(arm, where) of every branch that has nothing more to say, those that failed too."""
    sweep = advice.branch_sweep
    if sweep is None:
        return []
    keys = {arm_key(dict(advice.own.arms.loc[c.arm])): c.arm for c in advice.arms}
    found = []
    for trial in sweep.plan.trials:
        told, arm = trial.configured("branch"), keys.get(arm_key(trial.axes.model_dump()))
        if isinstance(told, dict) and arm and sweep.trials.loc[trial.trial_id, "status"] in DONE:
            found.append((arm, float(told["at_samples"])))
    return found


def _runs(advice: Advice) -> list[Item]:
    """Full runs of the leader and its likeliest challenger while the advice does not stand."""
    decision = advice.decision
    if decision.separated or decision.leader is None:
        return []
    seeds = {candidate.arm: _seeds_left(advice, candidate.arm) for candidate in advice.arms}
    counts = {arm: len(left) for arm, left in seeds.items()}
    found: list[Item] = []
    for arm in allocate(decision, counts, advice.workers):
        seed, trial = seeds[arm].pop(0)
        role = "the leader" if arm == decision.leader else f"it may beat {decision.leader}"
        found.append(
            {"do": "run", "arm": arm, "seed": seed, "trial": trial, "samples": _cost(advice, arm), "why": role}
        )
    return found


def _seeds_left(advice: Advice, arm: str) -> list[tuple[int, str | None]]:
    """(seed, its trial) of what can still be run of an arm; of somebody else's records seeds that nobody has."""
    rows = advice.own.trials[advice.own.trials["arm"] == arm].sort_values("seed")
    most = advice.settings.most_seeds
    if not advice.settings.owned:
        first = int(rows["seed"].max()) + 1
        return [(first + k, None) for k in range(max(most - len(rows), 0))]
    kept = rows[:most]
    return [(int(row["seed"]), str(trial)) for trial, row in kept.iterrows() if row["status"] not in DONE]


def _cost(advice: Advice, arm: str) -> int | None:
    """Samples that a run of the arm will take: past its expected N*, within its budget."""
    names = [candidate.arm for candidate in advice.arms]
    expected = math.exp(float(np.median(advice.decision.log_N[:, names.index(arm)])))
    budget = configured(advice.own, arm, "budget_samples")
    cost = (1 + advice.settings.past_target) * expected
    return int(min(cost, budget)) if isinstance(budget, int | float) else None


def _profile(advice: Advice) -> list[Item]:
    """Places in flight of the advised arm and the runner-up, once: what they cost is seconds."""
    decision, speed = advice.decision, advice.settings.speed
    arms = [arm for arm in (decision.advised, decision.runner_up) if arm]
    modes = {configured(advice.own, arm, "execution", "mode") for arm in arms}
    if not arms or speed is None or modes - {"synchronous", None}:
        return []
    folder = folder_beside(advice.sweep.path, speed)
    if folder is not None and read_profile(folder) is not None:
        return []
    batches = {arm: advice.evidence.of(arm).train_batch for arm in arms}
    values = {arm: sorted({max(batch // share, 1) for share in (1, 2, 4)}) for arm, batch in batches.items()}
    return [{"do": "profile", "arms": arms, "gen_batch": values, "why": "whether fewer places in flight are as fast"}]
