"""What verl's timings of a row count as: phases, or evaluation and checkpoints, which the step time may hold or not.

Phases are `timing_s/`, once `timing/`. Names that are not below are sub-timings that lie within a phase (all of
`generate_sequences`, `reshard`, `agent_loop/...` lie within `gen`), or are so short that they stay in what a step takes
beyond its phases.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

PHASES = {
    **dict.fromkeys(("gen", "gen_max"), "generate"),
    "reward": "reward",
    **dict.fromkeys(("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"), "train"),
    **dict.fromkeys(("update_weights", "sync_rollout_weights", "param_sync"), "sync"),
}
APART = {"testing": "evaluate", "save_checkpoint": "checkpoint"}


def timings_of(metrics: Mapping[str, float]) -> dict[str, float]:
    """Timing of verl -> seconds."""
    new = {name.removeprefix("timing_s/"): value for name, value in metrics.items() if name.startswith("timing_s/")}
    return new or {name.removeprefix("timing/"): x for name, x in metrics.items() if name.startswith("timing/")}


def seconds_of(timings: Mapping[str, float], inside: Iterable[str]) -> dict[str, float]:
    """Seconds that count into q by our phases; {} where the row has no full account of them.

    inside: the timings kept apart that the step time holds (`inside_step`). What a step takes beyond its phases is
    undivided; where phases overlap, so that they sum to more than the step, all of it is.

    A step of 2,506.9 s that holds 2,322.5 s of checkpoint and 43.9 s of evaluation works for 140.5 s:

    >>> row = {"gen": 100.0, "update_actor": 40.0, "step": 2506.9, "save_checkpoint": 2322.5, "testing": 43.9}
    >>> {name: round(value, 6) for name, value in seconds_of(row, ["testing", "save_checkpoint"]).items()}
    {'generate': 100.0, 'train': 40.0, 'undivided': 0.5}
    """
    phases: dict[str, float] = {}
    for name, our in PHASES.items():
        if name in timings:
            phases[our] = phases.get(our, 0.0) + timings[name]
    if "step" not in timings:
        return phases if "generate" in phases else {}
    work = timings["step"] - sum(timings.get(name, 0.0) for name in inside)
    rest = work - sum(phases.values())
    if rest < -0.01 * work:
        return {"undivided": work}
    return phases | ({"undivided": rest} if rest > 0 else {})


def apart_of(timings: Mapping[str, float]) -> dict[str, float]:
    """Seconds of evaluation and checkpoint by our names."""
    return {our: timings[name] for name, our in APART.items() if name in timings}


def inside_step(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Which of testing and save_checkpoint the step time holds, from the timings of all rows.

    Rows without either show what a step takes beyond its phases; for a row with them, the subset that explains best
    what it takes beyond that. The majority of rows decides for each.
    """
    beyond: list[float] = []
    with_apart: list[tuple[float, dict[str, float]]] = []
    for timings in rows:
        if "step" not in timings:
            continue
        extra = timings["step"] - sum(timings.get(name, 0.0) for name in PHASES)
        apart = {name: timings[name] for name in APART if name in timings}
        if apart:
            with_apart.append((extra, apart))
        else:
            beyond.append(extra)
    usual = median(beyond) if beyond else 0.0
    votes: dict[str, list[bool]] = {name: [] for name in APART}
    for extra, apart in with_apart:
        subsets = [subset for size in range(len(apart) + 1) for subset in itertools.combinations(apart, size)]
        sums = [abs(extra - usual - sum(apart[name] for name in subset)) for subset in subsets]
        best = subsets[sums.index(min(sums))]
        for name in apart:
            votes[name].append(name in best)
    return [name for name, found in votes.items() if 2 * sum(found) > len(found)]


def clock_notes(rows: Sequence[Mapping[str, float]], counted: Sequence[Mapping[str, float]]) -> list[str]:
    """What was assumed of the time; rows: timings, counted: the seconds made of them."""
    if not any(counted):
        return ["No row has its seconds: q is unknown."]
    step = any("step" in timings for timings in rows)
    apart = [name for name in APART if any(name in timings for timings in rows)]
    inside = inside_step(rows)
    text = "the step time" if step else "the sum of the phases, for there is no step time"
    if apart:
        text += f"; {' and '.join(apart)} left out"
    if apart and step:
        text += " ("
        text += ", ".join(f"{name} {'is part of' if name in inside else 'comes on top of'} the step" for name in apart)
        text += ")"
    notes = [f"Seconds of a row: {text}."]
    without = sum(not seconds for seconds in counted)
    if without:
        notes.append(f"{without} rows have no full account of their seconds and do not count into q.")
    return notes
