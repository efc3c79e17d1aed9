"""Reads results/<sweep> into tidy tables; plan_file and records know the formats of the files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from analysis.errors import InputError
from analysis.plan_file import Plan, PlannedTrial, read_plan
from analysis.records import (
    COUNTERS,
    IDENTITY,
    PHASE_COLUMNS,
    PHASES,
    RESERVED,
    TRAIN_FIELDS,
    latest,
    number,
    outcome_of,
    read_lines,
    read_object,
    read_timing,
    records_by_kind,
    table,
)
from analysis.targets import Target, default_target

__all__ = ["PHASES", "Sweep", "load_sweep", "records_of"]

UPDATE_COLUMNS = [*COUNTERS, *TRAIN_FIELDS, *PHASE_COLUMNS, "samples", "samples_before"]
FINISHED = ("completed", "diverged")
# A target that is asked for: a score, or the one that a rule chooses; None: the plan's.
Asked = float | Literal["auto"] | None


OF_THE_TRIAL = (
    "model",
    "task",
    "batch",
    "algorithm",
    "optimizer",
    "critic_optimizer",
    "evaluation",
    "budget_samples",
    "seed",
)
"""Sections of a configuration that no finished trial survives a change of."""


@dataclass(frozen=True)
class Sweep:
    """One sweep as tidy tables; samples are responses, times are seconds.

    arms:    one row per arm, index `arm`, in plan order: algorithm, num_prompts (P), group_size (G), train_batch
             (B = P*G, responses), lr (NaN: not known), lr_rule, whatever else was varied, and `in_flight`, the most
             responses generated at once.
    trials:  one row per planned trial, index `trial_id`: arm, seed, status (completed | diverged | failed |
             interrupted | unfinished | missing | unreadable | foreign | duplicate), reason, samples_trained,
             budget_samples (NaN: not stated), attempts (NaN: not stated), num_bad_lines (skipped), num_superseded
             (records that a later attempt made again), commit.
    evals:   one row per evaluation: trial_id, arm, seed, samples_trained, samples_generated, optimizer_steps, wall_s
             and a column per metric. Increasing in samples_trained within a trial.
    updates: one row per train record: the same, step, num_prompts, group_size, lr, tokens_*, samples_dropped, the
             seconds of the phases (generate_s, reward_s, train_s, sync_s; undivided_s of imported runs), what the roles
             did of them (engine_busy_frac, trainer_busy_frac, in_flight_mean, tail_frac; see results/README.md), a
             column per metric, `samples` (responses of this update; NaN after a gap in the records) and
             `samples_before` (samples_trained of the policy that the update started from).
    timing:  one row per measurement of the timing pass: round, arm, samples, tokens, updates, seconds of the phases.

    target:  the score to reach; target_rule says in words who or what chose it.

    A value that was not recorded, or is no finite number, is NaN. assumptions: what was taken for granted where the
    sweep was imported, a sentence each. plan: the file plan.json, with the configuration of every trial.
    num_bad_timing_lines: lines of timing.jsonl that measure nothing.
    """

    name: str
    question: str | None
    path: Path
    reference_arm: str
    metric: str
    target: float
    arms: pd.DataFrame
    trials: pd.DataFrame
    evals: pd.DataFrame
    updates: pd.DataFrame
    timing: pd.DataFrame
    plan: Plan
    target_rule: str = "stated in the plan"
    assumptions: tuple[str, ...] = ()
    num_bad_timing_lines: int = 0

    @property
    def finished(self) -> pd.DataFrame:
        """The trials that ran to their end (completed or diverged): those are the data."""
        return self.trials[self.trials["status"].isin(FINISHED)]


def load_sweep(path: str | Path, target: Asked = None) -> Sweep:
    """The sweep in the folder `path` (the one that holds plan.json); `target` replaces the plan's.

    "auto", and a plan without a target, take the one that the reference's curves give (analysis.targets).

    Raises InputError where the plan cannot be used. Lines of records that cannot be read are skipped and counted.
    """
    path = Path(path)
    plan = read_plan(path)
    if plan.target.metric in RESERVED:
        raise InputError(
            f"{path / 'plan.json'}: target.metric is {plan.target.metric!r}, which is no metric of a record"
        )
    trials, evals, updates = [], [], []
    for planned in plan.trials:
        row, tables = _read_trial(path / "trials" / planned.trial_id, planned)
        trials.append(row)
        evals.append(tables["eval"])
        updates.append(tables["train"])
    arms, rows = _arms(plan), _without_duplicates(pd.DataFrame(trials).set_index("trial_id"))
    all_evals = _concatenate(evals, [*COUNTERS])
    chosen = _target(plan, target, rows, all_evals)
    timing, num_bad_timing_lines = read_timing(path / "timing.jsonl", list(arms.index))
    return Sweep(
        name=plan.sweep,
        question=plan.question,
        path=path,
        reference_arm=plan.reference_arm,
        metric=plan.target.metric,
        target=chosen.value,
        arms=arms,
        trials=rows,
        evals=all_evals,
        updates=_concatenate(updates, UPDATE_COLUMNS),
        timing=timing,
        plan=plan,
        target_rule=chosen.rule,
        assumptions=tuple(plan.assumptions),
        num_bad_timing_lines=num_bad_timing_lines,
    )


def _target(plan: Plan, asked: float | str | None, trials: pd.DataFrame, evals: pd.DataFrame) -> Target:
    """The target asked for, or the plan's, or the default one of the reference's finished trials."""
    if asked is None and plan.target.value is not None:
        return Target(plan.target.value, "stated in the plan")
    if isinstance(asked, int | float):
        if not math.isfinite(asked):
            raise InputError(f"target {asked} is not a number that a score can reach")
        return Target(float(asked), "named for this report")
    finished = trials.index[trials["status"].isin(FINISHED) & (trials["arm"] == plan.reference_arm)]
    metric = plan.target.metric
    known = evals[evals["trial_id"].isin(finished)].dropna(subset=[metric]) if metric in evals else evals[:0]
    if known.empty:
        text = f"no finished trial of the reference {plan.reference_arm} has a record of {metric}"
        raise InputError(f"{plan.sweep} has no target and none can be chosen: {text}; name one with --target")
    curves = [
        (of_trial["samples_trained"].to_numpy(), of_trial[metric].to_numpy()) for _, of_trial in records_of(known)
    ]
    return default_target(curves)


def _arms(plan: Plan) -> pd.DataFrame:
    rows: dict[str, dict[str, Any]] = {}
    for trial in plan.trials:
        gen_batch = number(trial.configured("batch", "gen_batch"))
        streams = trial.configured("execution", "mode") == "streaming"
        fits = gen_batch >= 1 and (streams or gen_batch < trial.axes.train_batch)
        in_flight = int(gen_batch) if fits else trial.axes.train_batch
        rows.setdefault(trial.arm, {**trial.axes.model_dump(), "in_flight": in_flight})
    return pd.DataFrame.from_dict(rows, orient="index").astype({"lr": float}).rename_axis("arm")


def _read_trial(directory: Path, planned: PlannedTrial) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """The row of the trials table and the tables of its records by kind."""
    identity = {name: getattr(planned, name) for name in IDENTITY}
    lines, num_bad_lines = read_lines(directory / "metrics.jsonl")
    kinds, num_no_records = records_by_kind(lines)
    counting = {kind: latest(found) for kind, found in kinds.items()}
    status, reason = outcome_of(directory / "outcome.json", started=bool(lines))
    others = foreign_sections(read_object(directory / "config.json"), planned)
    if others:
        status, reason = "foreign", f"its config.json is not the plan's: it differs in {', '.join(others)}"
    commit = read_object(directory / "provenance.json").get("commit")
    budget = number(planned.configured("budget_samples"))
    row = {
        **identity,
        "status": status,
        "reason": reason,
        "samples_trained": max((r["samples_trained"] for found in counting.values() for r in found), default=0),
        "budget_samples": budget if budget > 0 else math.nan,
        "attempts": number(read_object(directory / "outcome.json").get("attempts")),
        "num_bad_lines": num_bad_lines + num_no_records,
        "num_superseded": sum(map(len, kinds.values())) - sum(map(len, counting.values())),
        "commit": commit if isinstance(commit, str) else None,
    }
    return row, {kind: table(found, identity, kind) for kind, found in counting.items()}


def foreign_sections(config: dict[str, Any], planned: PlannedTrial) -> list[str]:
    """Where a trial's own configuration is not the plan's: somebody moved a folder, or edited one of the two."""
    stated = planned.config if isinstance(planned.config, dict) else {}
    if "imported" in config:
        return []
    return [name for name in OF_THE_TRIAL if name in config and name in stated and config[name] != stated[name]]


def _without_duplicates(trials: pd.DataFrame) -> pd.DataFrame:
    """Of trials that are the same arm with the same seed the first finished one counts; the others are duplicates."""
    trials = trials.copy()
    for _, same in trials.groupby(["arm", "seed"], sort=False):
        if len(same) > 1:
            finished = same.index[same["status"].isin(FINISHED)]
            kept = finished[0] if len(finished) else same.index[0]
            others = same.index[same.index != kept]
            trials.loc[others, "status"] = "duplicate"
            trials.loc[others, "reason"] = f"the same arm with the same seed as {kept}"
    return trials


def _concatenate(tables: list[pd.DataFrame], required: list[str]) -> pd.DataFrame:
    """One table of all trials; a metric that a trial lacks is NaN there."""
    filled = [table for table in tables if len(table)]
    if not filled:
        return pd.DataFrame(columns=[*IDENTITY, *required]).astype(dict.fromkeys(required, float))
    return pd.concat(filled, ignore_index=True)


def provenance_of(sweep: Sweep, trial_id: str) -> dict[str, Any]:
    """What provenance.json says of a trial: commit, packages, hardware; {} where it says nothing."""
    return read_object(sweep.path / "trials" / trial_id / "provenance.json")


def records_of(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """(trial_id, its rows) in order of appearance."""
    for trial_id, rows in table.groupby("trial_id", sort=False):
        yield str(trial_id), rows
