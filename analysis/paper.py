"""python -m analysis paper [DIR] [--json]: the published numbers, recomputed from one another."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from analysis.decision import Candidate, recommend, verdict
from analysis.errors import InputError
from analysis.facts import (
    Derivation,
    Fact,
    Values,
    agrees,
    propagate,
    quotient,
    read_derivations,
    read_facts,
    read_rows,
)
from analysis.penalty import Interval

# In place of a reason why a number is not recomputed: it was chosen.
SETTING = "a setting"


PUBLISHED = Path(__file__).resolve().parent.parent / "results" / "paper"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("folder", type=Path, nargs="?", default=PUBLISHED, help="facts, derivations, table")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of tables")


def run(options: argparse.Namespace) -> int:
    """Print what was stated beside what follows. A disagreement is a finding, not a failure: the exit code is 0."""
    found = check(options.folder)
    if options.json:
        print(json.dumps(found, indent=1, allow_nan=False))
    else:
        _print(found)
    return 0


def check(folder: Path) -> dict[str, Any]:
    """Everything the command says, as `--json` prints it.

    `recomputed`: stated numbers that follow from others; `derived`: what else follows; `tensions`: relations that
    should hold between two numbers; `not_recomputed`: results that follow from nothing published, and why; `settings`:
    what was chosen and not measured; `decision`: the decision rule applied to the published table.
    """
    facts, derivations = read_facts(folder), read_derivations(folder)
    _complete(facts, derivations)
    values = Values(facts, derivations)
    recomputed = [_recomputed(facts[d.result], d, values) for d in derivations if d.result in facts]
    derived = [_derived(d, values) for d in derivations if d.result not in facts]
    left_out = [fact for fact in facts.values() if fact.why_not and fact.why_not != SETTING]
    found = {
        "format": 1,
        "recomputed": recomputed,
        "derived": derived,
        "tensions": [_tension(row, values) for row in read_rows(folder / "tensions.csv", TENSION_COLUMNS)],
        "not_recomputed": [_stated(fact) | {"why": fact.why_not} for fact in left_out],
        "settings": [_stated(fact) for fact in facts.values() if fact.why_not == SETTING],
        "decision": decide(read_rows(folder / "table.csv", TABLE_COLUMNS), values),
    }
    return found | {"summary": _summary(found)}


def _complete(facts: Mapping[str, Fact], derivations: Sequence[Derivation]) -> None:
    """Every stated number is recomputed, or says why not: no number slips through."""
    has_rule = {derivation.result for derivation in derivations}
    for name, fact in facts.items():
        if (name in has_rule) == bool(fact.why_not):
            needed = "a row in derivations.csv or a reason in why_not_recomputed, and not both"
            raise InputError(f"facts.csv: {name} needs {needed}")


def _stated(fact: Fact) -> dict[str, Any]:
    keys = ("name", "unit", "provenance", "section")
    return {key: getattr(fact, key) for key in keys} | {"stated": fact.text}


def _recomputed(fact: Fact, derivation: Derivation, values: Values) -> dict[str, Any]:
    result = values.derive(derivation)
    rule = {"rule": derivation.rule, "inputs": list(derivation.inputs), "what": derivation.what}
    judged = {"tolerance": fact.half_unit, "verdict": "agrees" if agrees(fact, result) else "disagrees"}
    return _stated(fact) | rule | _numbers(result) | judged


def _derived(derivation: Derivation, values: Values) -> dict[str, Any]:
    rule = {"rule": derivation.rule, "inputs": list(derivation.inputs), "what": derivation.what}
    return {"name": derivation.result, "unit": derivation.unit} | rule | _numbers(values.derive(derivation))


def _numbers(interval: Interval) -> dict[str, Any]:
    return {"recomputed": interval.estimate, "low": interval.low, "high": interval.high}


TENSION_COLUMNS = ("name", "quantity", "relation", "limit", "assumes", "says", "ways_out")
# Whether some value in the one interval stands in the relation to some value in the other: (low, high, low, high).
RELATIONS = {
    "at most": lambda low, high, limit_low, limit_high: low <= limit_high,
    "at least": lambda low, high, limit_low, limit_high: high >= limit_low,
}


def _tension(row: Mapping[str, str], values: Values) -> dict[str, Any]:
    """A relation that should hold between two numbers, judged with their rounding."""
    if row["relation"] not in RELATIONS:
        raise InputError(f"tensions.csv: relation {row['relation']!r}; needed is {' or '.join(RELATIONS)}")
    quantity, limit = values.of(row["quantity"]), values.of(row["limit"])
    holds = RELATIONS[row["relation"]](quantity.low, quantity.high, limit.low, limit.high)
    numbers = {"quantity": row["quantity"], **_numbers(quantity), "relation": row["relation"]}
    against = {"limit": row["limit"], "limit_interval": [limit.low, limit.high]}
    words = {key: row[key] for key in ("assumes", "says", "ways_out")}
    return {"name": row["name"], **numbers, **against, "verdict": "fits" if holds else "in tension", **words}


TABLE_COLUMNS = ("arm", "prompts", "lr_rule", "r_N", "r_q", "r_T", "verdict", "chosen")


def decide(table: Sequence[Mapping[str, str]], values: Values) -> dict[str, Any]:
    """The decision of analysis.decision on the published table, with its rounding, beside the published decision.

    An arm's r_T must hold as stated and as r_N / r_q, where both are stated. Raises InputError without a reference.
    """
    reference = [row["arm"] for row in table if row["verdict"] == "reference"]
    if len(reference) != 1:
        raise InputError(f"table.csv: {len(reference)} reference arms; needed is one")
    times: dict[str, list[Interval]] = {row["arm"]: _times(row, values) for row in table}
    candidates = []
    for row in table:
        arm, is_reference = row["arm"], row["arm"] == reference[0]
        candidates.append(Candidate(arm, "reference" if is_reference else verdict(times[arm]), times[arm][0]))
    against = {a: {b: propagate(quotient, [times[b][0], times[a][0]]) for b in times if b != a} for a in times}
    advice = recommend(candidates, reference[0], against)
    chosen = [row["arm"] for row in table if row["chosen"] == "yes"]
    arms = [
        {
            "arm": own.arm,
            "r_T": [_numbers(x) for x in times[own.arm]],
            "verdict": own.verdict,
            "published": row["verdict"],
        }
        for own, row in zip(candidates, table, strict=True)
    ]
    agree = [arm["verdict"] == arm["published"] for arm in arms]
    return {
        "arms": arms,
        "recommended": advice.arm,
        "reason": advice.reason,
        "published": chosen,
        "verdict": "agrees" if all(agree) and [advice.arm] == chosen else "disagrees",
    }


def _times(row: Mapping[str, str], values: Values) -> list[Interval]:
    found = [values.of(row["r_T"])] if row["r_T"] else []
    if row["r_N"] and row["r_q"]:
        found.append(propagate(quotient, [values.of(row["r_N"]), values.of(row["r_q"])]))
    if not found:
        raise InputError(f"table.csv: {row['arm']} has neither r_T nor both r_N and r_q")
    return found


def _summary(found: Mapping[str, Any]) -> list[str]:
    rows, tensions, decision = found["recomputed"], found["tensions"], found["decision"]
    stated = {row["name"] for row in rows}
    wrong = {row["name"] for row in rows if row["verdict"] != "agrees"}
    text = f"{len(stated) - len(wrong)} of {len(stated)} stated numbers that follow from others agree with them"
    strained = [row["name"] for row in tensions if row["verdict"] != "fits"]
    published = " and ".join(decision["published"]) or "none"
    return [
        text + (f"; not so {', '.join(sorted(wrong))}." if wrong else "."),
        f"{len(found['not_recomputed'])} results follow from nothing that is published; "
        f"{len(found['settings'])} numbers are settings.",
        f"In tension: {'; '.join(strained)}." if strained else "No tension.",
        f"The decision rule chooses {decision['recommended']}; published: {published}. "
        f"With the verdicts of all arms, it {decision['verdict']}.",
    ]


def _print(found: Mapping[str, Any]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=140)
    head: tuple[str, ...] = ("stated number", "stated", "recomputed", "interval", "+-", "verdict", "from")
    _table(console, "Recomputed from other stated numbers", head, [_cells(row) for row in found["recomputed"]])
    head = ("derived number", "value", "interval", "unit", "from")
    derived = [(r["name"], _short(r["recomputed"]), _span(r), r["unit"], r["what"]) for r in found["derived"]]
    _table(console, "What else follows", head, derived)
    console.print("[bold]Tensions[/bold]")
    for row in found["tensions"]:
        console.print(_tension_words(row), soft_wrap=True, markup=False)
    console.print()
    head = ("stated number", "stated", "unit", "provenance", "why it cannot be recomputed")
    left_out = [(r["name"], r["stated"], r["unit"], r["provenance"], r["why"]) for r in found["not_recomputed"]]
    _table(console, "Results that cannot be recomputed", head, left_out)
    head = ("arm", "r_T with its rounding", "verdict", "published")
    arms = found["decision"]["arms"]
    cells = [(r["arm"], ", ".join(map(_span, r["r_T"])), r["verdict"], r["published"]) for r in arms]
    _table(console, "The decision rule on the published table", head, cells)
    for sentence in found["summary"]:
        console.print(sentence, soft_wrap=True)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    tolerance = f"{row['tolerance']:g}" if row["tolerance"] else "exact"
    value = _short(row["recomputed"])
    return (row["name"], row["stated"], value, _span(row), tolerance, row["verdict"], row["what"])


def _tension_words(row: Mapping[str, Any]) -> str:
    low, high = row["limit_interval"]
    limit = f"{row['relation']} {row['limit']}, {_span({'low': low, 'high': high})}"
    text = f"{row['name']}: {row['verdict']}. If {row['assumes']}, then {row['quantity']} is {_span(row)}"
    if row["verdict"] == "fits":
        return f"{text}, and it should be {limit}."
    return f"{text}, and it should be {limit}: {row['says']}. Ways out: {row['ways_out']}."


def _table(console: Console, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="bold")
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()


def _span(row: Mapping[str, Any]) -> str:
    low, high = _short(row["low"]), _short(row["high"])
    return low if low == high else f"{low} to {high}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
