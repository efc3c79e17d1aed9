"""The advice in words: sentences made from advice.json, for the head of the page and for the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.advise.checks import NOISE_CHECK
from analysis.labels import short_number
from analysis.words import interval, listed, number

Content = Mapping[str, Any]
# A chance that a run breaks is said from here on.
NOTABLE = 0.05


def headline(content: Content) -> str:
    """The first paragraph: what to use, how sure that is, what it cost."""
    return " ".join([_use(content), *_sureness(content), cost_sentence(content)])


def _goal(content: Content) -> str:
    return f"{content['target']['value']:g} in {content['target']['metric']}"


def describe(arm: Mapping[str, Any]) -> str:
    """`a batch of 128 responses (P16-G8-sqrt)`."""
    return f"a batch of {arm['train_batch']:,} responses ({arm['arm']})"


def _use(content: Content) -> str:
    arm = content["advice"]
    if arm is None:
        return f"No advice yet for {_goal(content)}: {content['why']}."
    shape = f"P = {arm['num_prompts']:,} prompts with G = {arm['group_size']} responses each"
    rate = "" if arm["lr"] is None else f", learning rate {short_number(arm['lr'])} ({arm['lr_rule']} rule)"
    flight = f", at most {arm['gen_batch']:,} in flight" if arm["gen_batch"] else ""
    begin = "Use" if content["separated"] else "By what is known so far, use"
    text = f"{begin} {describe(arm)}: {shape}{rate}{flight}."
    rows = {row["arm"]: row for row in content["arms"]}
    if sum(row["r_T"]["estimate"] is not None for row in content["arms"]) == 1:
        return f"{text} It is the only batch of which the speed and runs are known, so there is nothing to choose from."
    if content["expected_fastest"] != arm["arm"]:
        other = rows[content["expected_fastest"]]
        ratio = interval(other["r_T"]).replace("(", "(95% interval ")
        text = f"{text} Of {describe(other)} {ratio} of the reference's time is expected, but it has too few runs yet."
    if arm["arm"] == content["reference_arm"]:
        sooner = ", and no candidate is expected to be faster" if content["expected_fastest"] == arm["arm"] else ""
        return f"{text} That is the batch of the reference{sooner}."
    within = interval(arm["r_T"]).replace("(", "(95% interval ")
    reference = rows[content["reference_arm"]]
    return f"{text} It reaches {_goal(content)} in {within} of the time of the reference, {describe(reference)}."


def _sureness(content: Content) -> list[str]:
    arm = content["advice"]
    if arm is None or arm["runner_up"] is None:
        return []
    share = f"{content['tolerance']:.0%}"
    sure = percent(arm["probability_within_tolerance"])
    needed = "" if content["separated"] else f", short of the {percent(content['confidence'])} asked for"
    found = [f"The probability that it is within {share} of the fastest candidate is {sure}{needed}."]
    if not content["separated"] and content["stage"] == "done":
        found.append(f"That is as far as it goes: {content['why']}.")
    if (arm["breaks"]["estimate"] or 0) > NOTABLE:
        found.append(_breaks(content))
    second, ratio = arm["runner_up"], interval(arm["over_runner_up"]).replace("(", "(95% interval ")
    found.append(f"The runner-up is {describe(second)}: the advised one takes {ratio} of its time.")
    if not content["owned"] and arm["runs"] < 2:
        found.append("It rests on one run of that batch.")
    return found


def _breaks(content: Content) -> str:
    arm = next(row for row in content["arms"] if row["arm"] == content["advice"]["arm"])
    low, high = (percent(limit) for limit in arm["breaks"]["ci95"])
    runs = f"{arm['broke']} of its {arm['runs']} runs did" if arm["broke"] else f"none of its {arm['runs']} runs did"
    return (
        f"A run of it may break, so that it never arrives: with probability {percent(arm['breaks']['estimate'])} "
        f"({low} to {high}; {runs}), which its time includes."
    )


def percent(share: float) -> str:
    """A probability; never 0% or 100%, which nothing here can show.

    >>> percent(0.9534), percent(0.9999), percent(0.0)
    ('95%', 'over 99%', 'under 1%')
    """
    return "over 99%" if share > 0.99 else "under 1%" if share < 0.01 else f"{share:.0%}"


def cost_sentence(content: Content) -> str:
    """What was spent so far."""
    cost = content["cost"]
    begin = "The records hold" if not content["owned"] else "Spent so far:" if content["next"] else "It took"
    text = f"{begin} {cost['samples']:,} samples"
    if cost["share"] is not None and content["owned"]:
        text += f", {cost['share']:.1%} of the {cost['full_sweep_samples']:,} of the whole sweep"
    seconds = cost["seconds"] if cost["seconds"] is not None else cost["trial_seconds"]
    if seconds:
        text += f", {_duration(seconds)}" + ("" if cost["seconds"] is not None else " of trials one after the other")
    return f"{text}."


def _duration(seconds: float) -> str:
    """`95 seconds`, `12 minutes`, `3.4 hours`.

    >>> _duration(95), _duration(720), _duration(12240)
    ('95 seconds', '12 minutes', '3.4 hours')
    """
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def sentences(content: Content) -> list[str]:
    """The rest of the head of the page."""
    found = [_rate(content), *_checks(content), *_next(content)]
    if content["left_out"]:
        told = [f"{arm} ({why})" for arm, why in content["left_out"].items()]
        found.append(f"Left out: {listed(told[:4])}{_more(len(told) - 4)}.")
    return [sentence for sentence in found if sentence]


def _rate(content: Content) -> str:
    rate = content["rate"]
    if rate["chosen"] is None or len(rate["grid"]) < 2:
        return ""
    text = f"Learning rate of the reference: {short_number(rate['chosen'])}"
    tried = [
        f"{number(row['samples_to_target'], 0)} samples at {short_number(row['lr'])}"
        for row in rate["grid"]
        if row["samples_to_target"] is not None
    ]
    return f"{text}, since {rate['why']}" + (f" (N* {listed(tried)})." if tried else ".")


def _checks(content: Content) -> list[str]:
    checks = content["checks"]
    wrong = [check for check in checks if not check["agrees"]]
    if not checks:
        return []
    if not wrong:
        return [f"The pieces of evidence agree ({len(checks)} {'check' if len(checks) == 1 else 'checks'})."]
    names = listed([f"{check['name']}, p = {check['p']:.2g}" for check in wrong])
    if all(check["name"] == NOISE_CHECK for check in wrong):
        return [f"The noise scale does not predict r_N here ({names}): branches and runs alone say what it is."]
    return [f"Prediction and runs disagree ({names}): the advice rests on runs alone, and asks for more of them."]


def _next(content: Content) -> list[str]:
    items = content["next"]
    if not items:
        return []
    return [f"What would settle it: {listed([proposal(item) for item in items[:4]])}{_more(len(items) - 4)}."]


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def proposal(item: Mapping[str, Any]) -> str:
    """One trial or measurement that is proposed."""
    if item["do"] == "run":
        return f"a run of {item['arm']} with seed {item['seed']} ({item['why']})"
    if item["do"] == "branch":
        return f"a branch with {item['arm']} from {item['at_samples']:,} samples on"
    if item["do"] == "time":
        return f"the speed of {len(item['arms'])} candidates"
    return f"the speed of {listed(item['arms'])} by responses in flight"


def change_sentence(change: Mapping[str, Any]) -> str:
    """One thing that might change the answer."""
    what = change["what"][0].upper() + change["what"][1:]
    if change["arm"] is None:
        return f"{what}: not known."
    ratio = change["advised_over_best"]
    if change["changes"]:
        return f"{what}: {change['arm']} instead; the advised batch would take {ratio:.2f} times its time."
    if ratio > 1.01:
        return f"{what}: the answer holds; {change['arm']} would be {1 - 1 / ratio:.0%} faster, within the tolerance."
    return f"{what}: the answer holds."
