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

    A field that one of the two does not state counts as None; where one states no configuration at all, as an import
    may not, only axes, target and machine are compared.
    """
    sweeps = (first, second)
    sides = [_axes(sweep) | _machine(sweep) for sweep in sweeps]
    if all(map(states_configuration, sweeps)):
        sides = [side | _configured(sweep) for side, sweep in zip(sides, sweeps, strict=True)]
    found = []
    for kind, field in {**sides[0], **sides[1]}:
        values = [side.get((kind, field)) for side in sides]
        if values[0] != values[1]:
            found.append({"kind": kind, "field": field, "values": values, "bears_on": BEARS_ON[kind]})
    order = list(BEARS_ON)
    return sorted(found, key=lambda row: order.index(row["kind"]))


def states_configuration(sweep: Sweep) -> bool:
    """Whether the plan holds the configuration of the reference's trials (that of an import may not)."""
    return bool(_configured(sweep))


def _reference(sweep: Sweep) -> PlannedTrial:
    return next(trial for trial in sweep.plan.trials if trial.arm == sweep.reference_arm)


def _axes(sweep: Sweep) -> dict[tuple[str, str], Any]:
    """(kind, field) -> what the sweep is about and what its reference arm is."""
    axes = _reference(sweep).axes
    return {
        ("metric", "metric"): sweep.metric,
        ("target", "target"): sweep.target,
        ("algorithm", "algorithm"): axes.algorithm,
        ("group size", "group_size"): axes.group_size,
        ("reference batch", "train_batch"): axes.train_batch,
        ("optimizer", "lr"): axes.lr,
        ("optimizer", "lr_rule"): axes.lr_rule,
    }


def _configured(sweep: Sweep) -> dict[tuple[str, str], Any]:
    """(kind, field) -> value of the reference's configuration, less what the axes say."""
    found = {}
    for field, value in _flat(_reference(sweep).config):
        section = next((name for name in SECTIONS if field == name or field.startswith(f"{name}.")), None)
        if section and field not in SILENT:
            found[SECTIONS[section], field] = value
    return found


def _machine(sweep: Sweep) -> dict[tuple[str, str], Any]:
    provenance = provenance_of(sweep, _reference(sweep).trial_id)
    found: dict[tuple[str, str], Any] = {
        ("machine", field): value for field, value in _flat(provenance.get("hardware"))
    }
    return found | {("code", "commit"): provenance.get("commit")}


def _flat(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """The leaves of a nested object by dotted names."""
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in _flat(item, f"{path}.{key}" if path else str(key))]
    return [(path, value)] if path else []
