"""What two sweeps differ in besides their results, from their plans and provenance: what a comparison may rest on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.load import Sweep, provenance_of
from analysis.plan_file import PlannedTrial

# Kind of difference -> what it bears on.
BEARS_ON = {
    "metric": "N* and r_N: they are of different scores",
    "target": "N* and r_N: they are at different targets",
    "task": "everything",
    "model": "everything",
    "start": "N* and r_N: training starts from different policies",
    "algorithm": "everything",
    "group size": "what a batch B is made of",
    "reference batch": "r_N, r_q and r_T: arms are matched by B / B_ref",
    "optimizer": "N* and r_N",
    "sampling": "N*, r_N and r_q",
    "evaluation": "how finely and how noisily N* is seen",
    "budget": "which trials are bounds",
    "execution": "r_q and r_T",
    "machine": "r_q and r_T",
    "code": "everything that the code changed",
}
# Sections of a trial's configuration -> kind. What only spends or records (tracking, timing, statistics) is left out.
SECTIONS = {
    "task": "task",
    "model.warm_start": "start",
    "model.seed": "start",
    "model": "model",
    "algorithm": "algorithm",
    "optimizer": "optimizer",
    "critic_optimizer": "optimizer",
    "sampling": "sampling",
    "evaluation": "evaluation",
    "budget_samples": "budget",
    "execution": "execution",
}
# Told by kinds of their own, or without any effect on a result.
SILENT = (
    "algorithm.name",
    "optimizer.lr",
    "optimizer.lr_ref",
    "optimizer.lr_rule",
    "evaluation.metric",
    "evaluation.target",
    "execution.max_attempts",
    "execution.checkpoint_every_samples",
)


def differences(first: Sweep, second: Sweep) -> list[dict[str, Any]]:
    """Every setting of the two reference arms that differs: {"kind", "field", "values": [a, b], "bears_on"}.

    Only sections of the configuration that both state; a field that one of them does not state is None there.
    """
    sweeps, found = (first, second), []
    sides, left_out = [_recorded(sweep) for sweep in sweeps], unstated(first, second)
    for kind, field in {**sides[0], **sides[1]}:
        values = [side.get((kind, field)) for side in sides]
        if values[0] != values[1] and kind not in left_out:
            found.append((kind, field, values))
    sides = [_axes(sweep) for sweep in sweeps]
    for kind, field in {**sides[0], **sides[1]}:
        values = [side.get((kind, field)) for side in sides]
        if values[0] != values[1] and None not in values:
            found.append((kind, field, values))
    rows = [{"kind": kind, "field": field, "values": v, "bears_on": BEARS_ON[kind]} for kind, field, v in found]
    return sorted(rows, key=lambda row: (list(BEARS_ON).index(row["kind"]), "." in row["field"]))


def unstated(first: Sweep, second: Sweep) -> list[str]:
    """The kinds of settings that only one of the two states, so that nobody can say whether they differ."""
    kinds = [{kind for kind, _ in _recorded(sweep)} for sweep in (first, second)]
    return [kind for kind in BEARS_ON if (kind in kinds[0]) != (kind in kinds[1])]


def _reference(sweep: Sweep) -> PlannedTrial:
    return next(trial for trial in sweep.plan.trials if trial.arm == sweep.reference_arm)


def _axes(sweep: Sweep) -> dict[tuple[str, str], Any]:
    """(kind, field) -> what the sweep is about and what its reference arm is; None: not known."""
    axes = _reference(sweep).axes
    return {
        ("metric", "metric"): sweep.metric,
        ("target", "target"): sweep.target,
        ("algorithm", "algorithm"): None if axes.algorithm == "unknown" else axes.algorithm,
        ("group size", "group_size"): axes.group_size,
        ("reference batch", "train_batch"): axes.train_batch,
        ("optimizer", "lr"): axes.lr,
        ("optimizer", "lr_rule"): axes.lr_rule,
    }


def _recorded(sweep: Sweep) -> dict[tuple[str, str], Any]:
    """(kind, field) -> value of the reference's configuration, less what the axes say, and of its provenance."""
    trial, found = _reference(sweep), {}
    for field, value in _flat(trial.config):
        section = next((name for name in SECTIONS if field == name or field.startswith(f"{name}.")), None)
        if section and value is not None and field not in SILENT:
            found[SECTIONS[section], field] = value
    provenance = provenance_of(sweep, trial.trial_id)
    found |= {("machine", field): value for field, value in _flat(provenance.get("hardware"))}
    commit = provenance.get("commit")
    return found | ({("code", "commit"): commit} if commit else {})


def _flat(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """The leaves of a nested object by dotted names."""
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in _flat(item, f"{path}.{key}" if path else str(key))]
    return [(path, value)] if path else []
