"""advice.json: the advice as plain data (results/README.md says what each part means)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from analysis.advise.advice import Advice, configured
from analysis.advise.changes import changes
from analysis.advise.decide import Decision
from analysis.advise.evidence import Evidence
from analysis.advise.model import Posterior, Prior, posterior
from analysis.advise.obstacle import obstacle
from analysis.advise.proposals import propose
from analysis.advise.read import folder_beside, samples_used
from analysis.advise.unknown import unknown
from analysis.penalty import Interval
from analysis.plain import interval_json, plain
from analysis.profile_file import read_profile
from analysis.records import number, read_lines

# What is said of an arm where nothing can be.
_NOTHING = dict.fromkeys(("probability_best", "probability_within_tolerance"))
_NOTHING |= dict.fromkeys(("r_N", "r_T", "breaks", "samples_to_target"), interval_json(Interval()))


def build_advice(advice: Advice) -> dict[str, Any]:
    """Everything advice.json holds but its words."""
    decision, rates = advice.decision, advice.rates
    in_the_way = obstacle(advice)
    stage, items = ("done", []) if in_the_way else propose(advice)
    alone = posterior(replace(decision.evidence, runs={}, branches={}))
    arms = [_arm(advice, decision, alone, c.arm) for c in advice.arms]
    if in_the_way and not decision.reached(advice.reference):
        arms = [arm | _NOTHING for arm in arms]  # what the prior alone says of them is no finding
    content = {
        "format": 1,
        "sweep": advice.sweep.name,
        "question": advice.sweep.question,
        "owned": advice.settings.owned,
        "target": {"metric": advice.sweep.metric, "value": advice.sweep.target, "rule": advice.sweep.target_rule},
        "reference_arm": advice.reference,
        "stage": stage,
        "rate": {"chosen": rates.chosen, "why": rates.why, "grid": rates.grid, "wanted": rates.wanted},
        "advice": _advised(advice, decision),
        "expected_fastest": None if in_the_way else decision.leader,
        "separated": decision.separated,
        "confidence": advice.settings.confidence,
        "tolerance": advice.settings.tolerance,
        "why": in_the_way or _why(advice, stage, items),
        "arms": arms,
        "left_out": {**advice.settings.left_out, **advice.candidates.left_out},
        "noise_scale": _noise(advice),
        "seed_sd": decision.posterior.seed_sd,
        "branches": [vars(branch) for branch in advice.branches],
        "branch_shift": _branch_shift(decision.prior),
        "checks": [vars(one) | {"agrees": one.agrees} for one in decision.checks],
        "next": items,
        "cost": _cost(advice),
        "changes": [] if in_the_way else changes(advice),
        "unknown": unknown(advice),
        "assumptions": list(advice.sweep.assumptions),
    }
    found: dict[str, Any] = plain(content)
    return found


def _advised(advice: Advice, decision: Decision) -> dict[str, Any] | None:
    if decision.advised is None:
        return None
    return _brief(advice, decision, decision.advised) | {
        "gen_batch": _gen_batch(advice, decision.advised),
        "probability_within_tolerance": decision.within(decision.advised),
        "probability_best": decision.probability_best[decision.advised],
        "runs": decision.reached(decision.advised),
        "runner_up": _brief(advice, decision, decision.runner_up) if decision.runner_up else None,
        "over_runner_up": interval_json(decision.r_T(decision.advised, decision.runner_up))
        if decision.runner_up
        else None,
    }


def _brief(advice: Advice, decision: Decision, arm: str) -> dict[str, Any]:
    axes = advice.own.arms.loc[arm]
    found = {name: axes[name] for name in ("num_prompts", "group_size", "train_batch", "lr", "lr_rule")}
    return {"arm": arm, **found, "gen_batch": configured(advice.own, arm, "batch", "gen_batch")} | {
        "r_T": interval_json(decision.r_T(arm)),
        "breaks": interval_json(decision.breaks(arm)),
        "probability_best": decision.probability_best[arm],
    }


def _gen_batch(advice: Advice, arm: str) -> int | None:
    """The places in flight that a profile shows to be faster than the arm's own (intervals apart); else its own."""
    own = configured(advice.own, arm, "batch", "gen_batch")
    folder = folder_beside(advice.sweep.path, advice.settings.speed)
    profile = read_profile(folder) if folder else None
    batch = advice.evidence.of(arm).train_batch
    points = [
        p for curve in (profile.of("generate") if profile else []) for p in curve.points if p.train_batch == batch
    ]
    rates = {point.in_flight: point.responses_per_s for point in points if point.in_flight}
    usual = rates.get(own or batch)
    if usual is None or usual.ci95[1] is None:
        return own if isinstance(own, int) else None
    best = max(rates, key=lambda size: rates[size].ci95[0] or 0.0)
    return best if (rates[best].ci95[0] or 0.0) > usual.ci95[1] else own


def _branch_shift(prior: Prior) -> dict[str, float]:
    """The factor by which the branches of one run are thought to be slower than whole runs, with its 95% interval."""
    half = 1.96 * prior.branch_shift_sd
    logs = {"factor": prior.branch_shift, "low": prior.branch_shift - half, "high": prior.branch_shift + half}
    return {name: math.exp(value) for name, value in logs.items()}


def _arm(advice: Advice, decision: Decision, alone: Posterior, arm: str) -> dict[str, Any]:
    evidence = decision.evidence
    axes, timed = advice.own.arms.loc[arm], arm in decision.timed
    runs = [trial for trial in advice.study.trials if trial.arm == arm] if advice.study else []
    local = evidence.branches.get(evidence.of(arm).learns_as)
    branch = Interval()
    if local is not None:
        prior = decision.prior
        half = 1.96 * math.hypot(local.sd, prior.branch_sd, prior.branch_shift_sd)
        limits = [math.exp(local.log_r_N - prior.branch_shift + z) for z in (-half, 0.0, half)]
        branch = Interval(None, limits[1], None, "lower") if local.beyond else Interval(limits[1], limits[0], limits[2])
    return {
        "arm": arm,
        **{name: axes[name] for name in ("num_prompts", "group_size", "train_batch", "lr", "lr_rule")},
        "family": list(evidence.of(arm).family),
        "learns_as": evidence.of(arm).learns_as,
        "r_N": interval_json(decision.r_N(arm)),
        "r_q": interval_json(decision.r_q(arm)),
        "r_T": interval_json(decision.r_T(arm)),
        "probability_best": decision.probability_best.get(arm),
        "probability_within_tolerance": decision.within(arm) if timed else None,
        "runs": len(runs),
        "reached": sum(trial.crossing.censored != "right" for trial in runs),
        "broke": evidence.broke.get(arm, 0),
        "breaks": interval_json(decision.breaks(arm)),
        "measured_r_N": interval_json(_measured(advice, arm)),
        "branches": sum(branch.arm == arm for branch in advice.branches),
        "branch_r_N": interval_json(branch),
        "predicted_r_N": interval_json(_predicted(alone, evidence, arm)),
        "samples_to_target": interval_json(_samples(decision, arm)),
    }


def _measured(advice: Advice, arm: str) -> Interval:
    """r_N of the full runs alone."""
    return Interval() if advice.study is None or arm == advice.reference else advice.study.r_N(arm)


def _samples(decision: Decision, arm: str) -> Interval:
    post = decision.posterior
    mean, sd = post.moments(post.contrast(decision.evidence.of(arm).learns_as))
    if sd > 3:
        return Interval()
    return Interval(math.exp(mean), math.exp(mean - 1.96 * sd), math.exp(mean + 1.96 * sd))


def _predicted(alone: Posterior, evidence: Evidence, arm: str) -> Interval:
    """r_N from the noise scale of the reference alone, with what the formula leaves open."""
    reference, learner = (evidence.of(name).learns_as for name in (evidence.reference, arm))
    if learner == reference:
        return Interval(1.0, 1.0, 1.0)
    mean, sd = alone.moments(alone.contrast(learner, reference))
    return Interval(math.exp(mean), math.exp(mean - 1.96 * sd), math.exp(mean + 1.96 * sd))


def _noise(advice: Advice) -> dict[str, Any]:
    noise = advice.evidence.noise
    if noise is None:
        return {"estimate": None, "ci95": [None, None], "between_frac": None}
    low, high = (math.exp(noise.log_scale + z * noise.sd) for z in (-1.96, 1.96))
    return {"estimate": math.exp(noise.log_scale), "ci95": [low, high], "between_frac": noise.between_frac}


def _why(advice: Advice, stage: str, items: list[Any]) -> str:
    decision = advice.decision
    if decision.separated and decision.advised is not None:
        return (
            f"the probability that it is within {advice.settings.tolerance:.0%} of the fastest is "
            f"{decision.within(decision.advised):.1%}"
        )
    texts = {
        "rate": "the learning rate is still being tuned",
        "reference": "the reference has too few runs",
        "timing": "the speed of the candidates is not known yet",
        "rounds": "the speed of the fastest candidates is not known well enough",
        "branches": "branches are missing",
        "runs": "the fastest arm is not told apart yet",
        "done": "every seed that may be used has been, and the arms are not told apart",
    }
    if decision.timed and decision.leader is None:
        return "no candidate is expected to reach the target within its budget"
    if stage == "done" and not decision.timed:
        return "no seconds were recorded: which arm is fastest is not known"
    if stage == "timing":
        stage = "done" if items[0]["do"] == "profile" else "rounds" if "rounds" in items[0] else stage
    return texts[stage]


def _cost(advice: Advice) -> dict[str, Any]:
    samples, seconds = samples_used(advice.everything)
    full = advice.settings.full_sweep_samples
    if full is None:
        budgets = [configured(advice.own, c.arm, "budget_samples") for c in advice.arms]
        known = [budget for budget in budgets if isinstance(budget, int | float)]
        seeds = advice.settings.most_seeds
        full = int(seeds * sum(known)) if len(known) == len(budgets) else None
    lines, _ = read_lines(advice.sweep.path / "advise.log.jsonl")
    told = [number(line.get("seconds")) for line in lines if isinstance(line, dict)]
    steps = [seconds for seconds in told if seconds >= 0]
    return {
        "samples": samples,
        "trial_seconds": seconds,
        "seconds": sum(steps) if steps else None,
        "full_sweep_samples": full,
        "share": samples / full if full else None,
    }
