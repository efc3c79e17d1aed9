"""Published numbers as data, and what follows from them.

A number that is printed as 1.17 lies in [1.165, 1.175]. A rule is evaluated at every corner of the box that its inputs
span; all rules are monotone in each input, so the smallest and the largest corner bound the result. Stated and
recomputed agree when the stated number's own rounding meets that interval.
"""

from __future__ import annotations

import csv
import difflib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import brentq

from analysis.bound import Work, bound_s, decode_layer, training_layer
from analysis.errors import InputError
from analysis.penalty import Interval
from analysis.presets import find_gpu, find_model, inferred


@dataclass(frozen=True)
class Fact:
    """A stated number. half_unit: half a unit of its last printed digit, 0 for a count or a setting."""

    name: str
    text: str
    value: float
    half_unit: float
    unit: str
    provenance: str
    section: str
    why_not: str

    @property
    def interval(self) -> Interval:
        """What the printed number can stand for."""
        return Interval(self.value, self.value - self.half_unit, self.value + self.half_unit)


@dataclass(frozen=True)
class Derivation:
    """How a number follows from others: the name of a rule and of its inputs (or numbers)."""

    result: str
    unit: str
    rule: str
    inputs: tuple[str, ...]
    what: str


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV. Raises InputError where it is missing or lacks a column."""
    if not path.is_file():
        raise InputError(f"{path} is missing; needed is the folder of published facts, results/paper")
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path} has no column {missing[0]}; needed are {', '.join(columns)}")
        return list(reader)


def read_facts(folder: Path) -> dict[str, Fact]:
    """facts.csv by name."""
    path = folder / "facts.csv"
    columns = ("name", "value", "unit", "decimals", "provenance", "section", "why_not_recomputed")
    return {row["name"]: _fact(row, path) for row in read_rows(path, columns)}


def _fact(row: dict[str, str], path: Path) -> Fact:
    try:
        value, decimals = float(row["value"]), int(row["decimals"]) if row["decimals"] else None
    except ValueError:
        found = f"value {row['value']!r}, decimals {row['decimals']!r}"
        raise InputError(f"{path}: {row['name']} has {found}; needed are a number and a count of digits") from None
    half_unit = 0.0 if decimals is None else 0.5 * 10.0**-decimals
    why_not = row["why_not_recomputed"]
    return Fact(row["name"], row["value"], value, half_unit, row["unit"], row["provenance"], row["section"], why_not)


def read_derivations(folder: Path) -> list[Derivation]:
    """derivations.csv in its order."""
    path = folder / "derivations.csv"
    found = []
    for row in read_rows(path, ("result", "unit", "rule", "inputs", "what")):
        if row["rule"] not in RULES:
            near = difflib.get_close_matches(row["rule"], RULES, n=1) or list(RULES)[:1]
            raise InputError(f"{path}: {row['result']} has the unknown rule {row['rule']}; nearest is {near[0]}")
        found.append(Derivation(row["result"], row["unit"], row["rule"], tuple(row["inputs"].split()), row["what"]))
    return found


class Values:
    """Every name's interval: a stated number's rounding, or what the first derivation of it gives."""

    def __init__(self, facts: dict[str, Fact], derivations: Sequence[Derivation]) -> None:
        self._facts = facts
        self._derivations: dict[str, Derivation] = {}
        for derivation in derivations:
            self._derivations.setdefault(derivation.result, derivation)

    def of(self, name: str) -> Interval:
        """The interval of a fact, of a derived number, or of a number itself."""
        if name in self._facts:
            return self._facts[name].interval
        if name in self._derivations:
            return self.derive(self._derivations[name])
        try:
            number = float(name)
        except ValueError:
            near = difflib.get_close_matches(name, [*self._facts, *self._derivations], n=1)
            hint = f"; nearest is {near[0]}" if near else ""
            raise InputError(f"results/paper: {name} is neither a fact nor a derived number{hint}") from None
        return Interval(number, number, number)

    def derive(self, derivation: Derivation) -> Interval:
        """A rule at the middle and at every corner of its inputs."""
        inputs = [self.of(name) for name in derivation.inputs]
        try:
            return propagate(RULES[derivation.rule], inputs)
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise InputError(f"{derivation.result}: {derivation.rule} of {derivation.inputs} fails: {error}") from None


def propagate(rule: Callable[..., float], inputs: Sequence[Interval]) -> Interval:
    """A function's value at the estimates, and its least and largest value over the corners of the intervals.

    1.67 / 1.17: from 1.665 / 1.175 to 1.675 / 1.165.

    >>> found = propagate(quotient, [Interval(1.67, 1.665, 1.675), Interval(1.17, 1.165, 1.175)])
    >>> [round(x, 4) for x in (found.estimate, found.low, found.high)]
    [1.4274, 1.417, 1.4378]
    """
    estimate = rule(*(x.estimate for x in inputs))
    corners = [rule(*corner) for corner in itertools.product(*({x.low, x.high} for x in inputs))]
    return Interval(estimate, min(corners), max(corners))


def agrees(fact: Fact, recomputed: Interval) -> bool:
    """Whether the stated number, give or take half a unit of its last digit, meets the recomputed interval.

    >>> stated = Fact("T", "1.42", 1.42, 0.005, "", "", "", "")
    >>> agrees(stated, Interval(1.4274, 1.4170, 1.4378)), agrees(stated, Interval(1.45, 1.44, 1.46))
    (True, False)
    """
    assert recomputed.low is not None and recomputed.high is not None
    slack = fact.half_unit + 1e-9 * abs(fact.value)
    return recomputed.low - slack <= fact.value <= recomputed.high + slack


def quotient(a: float, b: float) -> float:
    """a / b"""
    return a / b


def product(a: float, b: float) -> float:
    """a b"""
    return a * b


def reduction(ratio: float) -> float:
    """Percent by which something at `ratio` of the reference is smaller: 100 (1 - ratio)."""
    return 100 * (1 - ratio)


def reduction_of(value: float, reference: float) -> float:
    """Percent by which value is below the reference."""
    return reduction(value / reference)


def penalty_of_updates(update_ratio: float, batch: float, reference_batch: float) -> float:
    """r_N = update ratio * B / B_ref: samples are updates times batch."""
    return update_ratio * batch / reference_batch


def per_doubling(batch_ratio: float, time_ratio: float) -> float:
    """The gain of one doubling if every doubling gained alike: (batch ratio / time ratio)^(1 / log2 batch ratio).

    >>> per_doubling(4, 1)
    2.0
    """
    return float((batch_ratio / time_ratio) ** (1 / math.log2(batch_ratio)))


def square_root_rate(rate: float, batch: float, reference_batch: float) -> float:
    """eta sqrt(B / B_ref)"""
    return rate * math.sqrt(batch / reference_batch)


def noise_scale_of_slope(slope: float, batch_low: float, batch_high: float) -> float:
    """B_n whose gradient norms |G| sqrt(1 + B_n / B) at every doubling from low to high have this log-log slope.

    Least squares over the doublings; the slope falls from 0 to -1/2 as B_n grows. Raises ValueError outside of that.

    >>> round(noise_scale_of_slope(-0.25, 100, 200))  # log2 of ratio^2 is 1/2: (1 + x/100)/(1 + x/200) = sqrt 2
    141
    """
    if not -0.5 < slope < 0:
        raise ValueError(f"a slope of {slope:g} belongs to no noise scale; needed is one between -1/2 and 0")
    log_batch = np.arange(0, math.log2(batch_high / batch_low) + 0.5) * math.log(2) + math.log(batch_low)

    def excess(log_noise: float) -> float:
        log_norm = 0.5 * np.log1p(np.exp(log_noise - log_batch))
        return float(np.polyfit(log_batch, log_norm, 1)[0]) - slope

    middle = float(log_batch.mean())
    return math.exp(brentq(excess, middle - 20, middle + 20))


def rho_of_latency(latency_ratio: float, batch: float) -> float:
    """rho with (1 + B rho) / (1 + rho) = latency ratio: (ratio - 1) / (B - ratio).

    >>> round(rho_of_latency(2.32, 32), 4)
    0.0445
    """
    return (latency_ratio - 1) / (batch - latency_ratio)


def bound_train_latency(batch: float, smallest: float) -> float:
    """t(batch) / t(smallest) of one layer's training proxy in the configuration inferred for the figure."""
    shown = inferred()
    model = find_model(shown["model"])
    return _bound_ratio(training_layer(model, shown["context"], shown["context"], shown["dtype"]), batch, smallest)


def bound_decode_latency(batch: float, smallest: float) -> float:
    """t(batch) / t(smallest) of one layer's decode step in the configuration inferred for the figure."""
    shown = inferred()
    return _bound_ratio(decode_layer(find_model(shown["model"]), shown["context"], shown["dtype"]), batch, smallest)


def bound_decode_gain(batch: float, smallest: float) -> float:
    """Tokens per second at `batch` over those at `smallest`, of the same decode step."""
    return batch / smallest / bound_decode_latency(batch, smallest)


def _bound_ratio(work: Work, batch: float, smallest: float) -> float:
    shown = inferred()
    last_s, first_s = bound_s(work, find_gpu(shown["gpu"]).hardware(shown["dtype"]), np.array([batch, smallest]))
    return float(last_s / first_s)


RULES: dict[str, Callable[..., float]] = {
    rule.__name__: rule
    for rule in (
        quotient,
        product,
        reduction,
        reduction_of,
        penalty_of_updates,
        per_doubling,
        square_root_rate,
        noise_scale_of_slope,
        rho_of_latency,
        bound_train_latency,
        bound_decode_latency,
        bound_decode_gain,
    )
}
