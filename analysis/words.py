"""The answer in words: sentences made from report.json, for the head of the page and for the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.labels import short_label

Report = Mapping[str, Any]
MOST_TIES = 4
FAR = 20.0  # times the estimate
STALENESS_TITLE = "The price of age"
STALENESS_CAPTION = (
    "r_N over the mean age of the tokens trained on, in updates, with 95% intervals. Dotted: the slope within one "
    "batch, over arms without a correction."
)
PROFILE_TITLE = "Speed alone"
PROFILE_CAPTION = (
    "Response tokens per second without learning, with 95% intervals, beside the bound from FLOPs and bytes. Dashed: "
    "the batch with 90% of the plateau that was measured, its interval shaded. Dotted: the plateau of the bound."
)


def headline(report: Report, more: Sequence[str] = ()) -> list[str]:
    """The sentences that answer the question: fastest batch, aligned range, controls, `more`, what is left out."""
    if not report["learning_signal"]:
        return ["No arm learned anything, so nothing can be said about the batch.", *_left_out(report)]
    if sum(arm["num_seeds"] > 0 for arm in report["arms"]) == 1:
        return [_alone(report), *more, *_left_out(report)]
    found = [_fastest(report), _alignment(report), *_controls(report), *_fewest(report)]
    return [*found, *more, *_left_out(report)]


def _goal(report: Report) -> str:
    return f"{report['target']['value']:g} in {report['target']['metric']}"


def _alone(report: Report) -> str:
    """The one arm that has trials: what it needs, and that there is nothing to compare it with."""
    arm = next(arm for arm in report["arms"] if arm["num_seeds"])
    needed = interval(arm["samples_to_target"], 0).replace("> ", "more than ")
    text = f"Only one arm has results, {arm['arm']}, so there is nothing to compare it with"
    return f"{text}: it reaches {_goal(report)} at N* = {needed} samples." if needed != "-" else f"{text}."


def _unreplicated(report: Report, reference: Mapping[str, Any]) -> str:
    """Without a second seed in any arm: the smallest r_T and r_N that were measured, as what they are."""
    parts = []
    for name, what in (("r_T", "the shortest time is"), ("r_N", "the fewest samples are")):
        known = [arm for arm in report["arms"] if arm[name]["estimate"] is not None and arm is not reference]
        if known:
            best = min(known, key=lambda arm: arm[name]["estimate"])
            parts.append(f"{what} {number(best[name]['estimate'])} times its ({short_label(report, best)})")
    text = f"Which arm reaches {_goal(report)} first cannot be told without a second seed"
    measured = f"; measured once, against {_subject(report, reference)}, {' and '.join(parts)}" if parts else ""
    return f"{text}{measured}."


def _fastest(report: Report) -> str:
    arms, advice, goal = _by_name(report), report["recommendation"], _goal(report)
    reference = arms[report["reference_arm"]]
    if report["method"]["spread_df"] == 0 and advice["arm"] is not None:
        return _unreplicated(report, reference)
    if advice["arm"] is None:
        return f"What reaches {goal} first cannot be said: {advice['reason']}."
    best = arms[advice["arm"]]
    if best is reference:
        text = f"Nothing is shown to reach {goal} sooner than the reference, {_subject(report, reference)}"
    else:
        within = interval(best["r_T"]).replace("(", "(95% interval ")
        subject = _subject(report, best)
        text = f"{subject[0].upper()}{subject[1:]} reaches {goal} first: in {within} of the time of the reference, "
        text += _subject(report, reference)
    ties = f"; not told apart from it: {_ties(report)}" if advice["ties"] else ""
    return f"{text}{ties}."


def _alignment(report: Report) -> str:
    """The aligned range along the reference's rule, and what the arms beyond it need."""
    train, reference = report["critical_batch"]["train"], _by_name(report)[report["reference_arm"]]
    rule, low, high = reference["lr_rule"], train["smallest_aligned"], train["largest_aligned"]
    own = sorted((arm for arm in report["arms"] if arm["lr_rule"] == rule), key=lambda arm: arm["train_batch"])
    aligned = [short_label(report, arm) for arm in own if arm["aligned"]]
    if low != high:
        text = f"With the {rule} rule the curves over samples stay aligned from B = {low:,} to B = {high:,}"
    elif aligned:
        text = f"Aligned with the reference: {listed(aligned)}"
    else:
        text = f"No other arm with the {rule} rule is shown to be aligned with the reference"
    text += " (90% interval of r_N within 3/4 and 4/3)"
    if report["method"]["spread_df"] == 0:
        once = [
            _penalty(report, arm, False) for arm in own if arm["r_N"]["estimate"] is not None and arm is not reference
        ]
        return f"Measured once with the {rule} rule, r_N is {listed(once)}." if once else f"{text}."
    beyond = [arm for arm in own if arm["aligned"] is False]
    missed = [short_label(report, arm) for arm in beyond if arm["verdict"] == "target_not_reached"]
    shown = [_penalty(report, arm, True) for arm in beyond if arm["verdict"] != "target_not_reached"]
    parts = [f"r_N is {listed(shown)}"] if shown else []
    if missed:
        parts.append(f"{listed(missed)} {'does' if len(missed) == 1 else 'do'} not reach the target")
    return "; ".join([text, *parts]) + "."


def _controls(report: Report) -> list[str]:
    """A sentence for each other learning-rate rule."""
    own = _by_name(report)[report["reference_arm"]]["lr_rule"]
    rules = dict.fromkeys(arm["lr_rule"] for arm in report["arms"] if arm["lr_rule"] != own)
    found = []
    for rule in rules:
        arms = sorted((arm for arm in report["arms"] if arm["lr_rule"] == rule), key=lambda arm: arm["train_batch"])
        aligned = [short_label(report, arm) for arm in arms if arm["aligned"]]
        parts = [f"aligned at {listed(aligned)}"] if aligned else []
        beyond = [arm for arm in arms if not arm["aligned"]]
        if len(beyond) > 2:
            parts += [f"r_N is {listed([_penalty(report, arm, False) for arm in beyond])}"]
        else:
            parts += [_control(report, arm, own) for arm in beyond]
        found.append(f"With the {rule} rule instead: {'; '.join(parts)}.")
    return found


def _fewest(report: Report) -> list[str]:
    """Which of several arms with one batch needs the fewest samples."""
    known = [arm for arm in report["arms"] if arm["r_N"]["estimate"] is not None]
    if len({arm["train_batch"] for arm in report["arms"]}) > 1 or len(known) < 2:
        return []
    best = min(known, key=lambda arm: arm["r_N"]["estimate"])
    if best["arm"] == report["reference_arm"]:
        return [f"The reference, {short_label(report, best)}, needs the fewest samples."]
    told = best["r_N"]["ci95"][1] is not None and best["r_N"]["ci95"][1] < 1
    text = f"The fewest samples: {short_label(report, best)}, {interval(best['r_N'])} times the reference's"
    return [text + ("." if told else ", not told apart from the reference.")]


def _penalty(report: Report, arm: Mapping[str, Any], with_limits: bool) -> str:
    r_N = arm["r_N"]
    text = interval(r_N) if with_limits or r_N["estimate"] is None else number(r_N["estimate"])
    text = text.replace("> ", "more than ") if text != "-" else "not known"
    return f"{text} at {short_label(report, arm)}"


def _control(report: Report, arm: Mapping[str, Any], own_rule: str) -> str:
    text = f"{short_label(report, arm)} {_needs(arm)}"
    if arm["r_T"]["estimate"] is not None:
        gain = {"faster": "faster", "slower": "slower"}.get(arm["verdict"], "no gain is shown")
        text += f" and {interval(arm['r_T'])} times its time ({gain})"
    twins = [other for other in report["arms"] if other["lr_rule"] == own_rule and _same_batch(other, arm)]
    if twins and twins[0]["r_N"]["estimate"] is not None:
        text += f", where the {own_rule} rule needs {interval(twins[0]['r_N'])} times the samples"
    return text


def _left_out(report: Report) -> list[str]:
    excluded, found = report["excluded"], []
    censored = [arm for arm in report["arms"] if arm["num_censored"]]
    if censored:
        each = [f"{_of_all(arm['num_censored'], arm['num_seeds'])} of {arm['arm']}" for arm in censored]
        found.append(f"Trials that do not reach the target count as bounds: {listed(each)}.")
    if excluded:
        counts: dict[str, int] = {}
        for trial in excluded:
            counts[trial["status"]] = counts.get(trial["status"], 0) + 1
        kinds = listed([f"{count} {status}" for status, count in counts.items()])
        found.append(f"Left out: {len(excluded)} trial{'s' * (len(excluded) > 1)} ({kinds}); the report lists why.")
    return found or ["No trial was left out."]


def _of_all(number_of: int, total: int) -> str:
    return f"all {total}" if number_of == total > 1 else f"{number_of} of {total}"


def _needs(arm: Mapping[str, Any]) -> str:
    r_N = arm["r_N"]
    if arm["verdict"] == "target_not_reached":
        bound = "" if r_N["ci95"][0] is None else f" (more than {r_N['ci95'][0]:.2f} times the samples)"
        return f"does not reach the target{bound}"
    if r_N["estimate"] is None and r_N["ci95"][0] is not None:
        return f"needs more than {r_N['ci95'][0]:.2f} times the reference's samples"
    if r_N["estimate"] is None:
        return "cannot be compared"
    return f"needs {interval(r_N)} times the reference's samples"


def interval(value: Mapping[str, Any], digits: int = 2) -> str:
    """An estimate with its 95% interval, a bound, or a hyphen.

    >>> interval({"estimate": 0.654, "ci95": [0.57, 0.742]}), interval({"estimate": None, "ci95": [2.8, None]})
    ('0.65 (0.57 to 0.74)', '> 2.80')
    >>> interval({"estimate": None, "ci95": [None, None]}), interval({"estimate": 1.2, "ci95": [None, None]})
    ('-', '1.20')

    A limit far from the estimate is none that was measured.

    >>> interval({"estimate": 3.4, "ci95": [1.7, 981.2]})
    '3.40 (1.70 or more)'
    """
    estimate, (low, high) = value["estimate"], value["ci95"]
    if estimate is None:
        if low is not None:
            return f"> {number(low, digits)}"
        return "-" if high is None else f"< {number(high, digits)}"
    if low == high:
        return number(estimate, digits)
    limits = [number(limit, digits) if limit is not None else "?" for limit in (low, high)]
    if low is not None and high is not None and 0 < FAR * estimate < high:
        return f"{number(estimate, digits)} ({limits[0]} or more)"
    return f"{number(estimate, digits)} ({limits[0]} to {limits[1]})"


def number(value: float | None, digits: int = 2) -> str:
    """A number with thousands separated, a hyphen for what is unknown.

    >>> number(8755.2, 0), number(0.654), number(23456.789), number(None)
    ('8,755', '0.65', '23,457', '-')
    """
    if value is None:
        return "-"
    return f"{value:,.{digits if abs(value) < 1000 else 0}f}"


def _by_name(report: Report) -> dict[str, Mapping[str, Any]]:
    return {arm["arm"]: arm for arm in report["arms"]}


def _subject(report: Report, arm: Mapping[str, Any]) -> str:
    label = short_label(report, arm)
    if label.startswith("B = "):
        series = label.partition(" (")[2].rstrip(")")
        return f"a batch of {arm['train_batch']:,} responses{series and ', ' + series} ({arm['arm']})"
    return label if label == arm["arm"] else f"{label} ({arm['arm']})"


def _ties(report: Report) -> str:
    """The arms that are not told apart from the recommended one; one of another rule than the reference's by name."""
    arms = _by_name(report)
    own = arms[report["reference_arm"]]["lr_rule"]
    names = [short_label(report, arms[n]) if arms[n]["lr_rule"] == own else n for n in report["recommendation"]["ties"]]
    return listed([*names[:MOST_TIES], f"{len(names) - MOST_TIES} more"] if len(names) > MOST_TIES + 1 else names)


def _same_batch(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return (a["num_prompts"], a["group_size"]) == (b["num_prompts"], b["group_size"])


def listed(parts: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def captions(report: Report) -> list[tuple[str, str]]:
    """(title, caption) of each figure in the order they are drawn."""
    target, slope = report["target"], report["gradient_slope"]["actor"]
    falls = ""
    if slope["slope"] is not None:
        low, high = slope["train_batch_range"]
        measured = {"estimate": slope["slope"], "ci95": slope["ci95"]}
        falls = f" Slope of the actor from B = {low:,} to {high:,}: {interval(measured, 3)}."
    predicted = ""
    if report["prediction"]["arms"]:
        predicted = " Dashed: r_N by Adam's form from the noise of the reference run alone."
    fitted = ""
    if report["time_model"]["optimum"]["estimate"] is not None:
        fitted = " Dotted: the fits of r_N and of r_T."
    return [
        (
            "Score over samples",
            "Mean over seeds, band from the lowest to the highest. Curves on one another learn equally well per "
            f"sample; dashed and dotted: what differs in more than the batch. Grey: the target, {target['value']:g}.",
        ),
        (
            "Samples and time to the target",
            "Ratios to the reference with 95% intervals; arrows are lower bounds. Blue band: the margin that the 90% "
            "interval of r_N must keep to be aligned. Below 1 in r_T a batch is faster than the reference. Open "
            "markers differ in more than the batch."
            f"{fitted}{predicted}",
        ),
        (
            "The decision",
            "Throughput gained against samples lost. Below the diagonal r_q exceeds r_N, and the batch reaches the "
            "target sooner. Open markers differ in more than the batch, arrows are lower bounds.",
        ),
        (
            "The penalty at other targets",
            "r_N at every round target that all seeds of the reference reach; 95% intervals, each for its own target. "
            "Lines end where seeds miss the target. Dotted: the target of this report.",
        ),
        (
            "Distance between the curves",
            "Largest |J(arm) - J(reference)| over the common grid. Bars hold that of the true means with 95% "
            "probability, over all points together.",
        ),
        (
            "Critical batches",
            "Each way to one with its 95% interval: where samples begin to be lost, where generation is filled, where "
            "the time is least. The largest aligned batch has a bar to the first that is not shown to be.",
        ),
        (
            "Gradient norm",
            f"Root mean square before clipping, over policies up to {report['gradient_window_samples']:,.0f} samples. "
            f"Noise alone falls as B^(-1/2); flat means signal.{falls}",
        ),
        (
            "Cost of a sample",
            "Milliseconds of generation and of training per sample: where larger batches stop paying."
            + (" In mode streaming generation is what the trainer waits for." if report["staleness"]["arms"] else ""),
        ),
        *([(STALENESS_TITLE, STALENESS_CAPTION)] if report["staleness"]["arms"] else []),
        *([(PROFILE_TITLE, PROFILE_CAPTION)] if report["profile"] else []),
    ]
