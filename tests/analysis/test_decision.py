"""Verdicts, the outward test and the recommendation, on numbers given."""

from analysis.decision import Candidate, OutwardArm, aligned_outward, equivalent, recommend, verdict
from analysis.penalty import Interval


def test_the_published_table_gives_the_published_decision() -> None:
    """T 0.71 at P=1024, 1.23 and 1.18 beyond, 1.42 for the control: P=1024 is the one to use."""
    published = {"P1024": 0.71, "P2048": 1.23, "P4096": 1.18, "P256-fixed": 1.67 / 1.17}
    candidates = [Candidate("P128", "reference", Interval(1.0, 1.0, 1.0))]
    for arm, r_T in published.items():
        interval = Interval(r_T, 0.95 * r_T, 1.05 * r_T)
        candidates.append(Candidate(arm, verdict([interval]), interval))
    assert [c.verdict for c in candidates] == ["reference", "faster", "slower", "slower", "slower"]
    advice = recommend(candidates, "P128", {"P1024": {}})
    assert (advice.arm, advice.r_T) == ("P1024", 0.71)


def test_a_tie_is_no_gain() -> None:
    assert verdict([Interval(0.9, 0.8, 1.0)]) == "inconclusive"


def test_a_verdict_survives_every_variant_or_is_none() -> None:
    faster, unsure = Interval(0.8, 0.7, 0.9), Interval(0.9, 0.79, 1.02)
    assert verdict([faster, faster, faster]) == "faster"
    assert verdict([faster, faster, unsure]) == "inconclusive"
    assert verdict([faster, Interval(bound="lower")]) == "inconclusive"


def test_a_wide_interval_is_not_aligned_and_no_interval_is_unknown() -> None:
    assert equivalent(Interval(1.0, 0.76, 1.32)) is True
    assert equivalent(Interval(1.0, 0.5, 2.0)) is False
    assert equivalent(Interval(None, 1.6, None, "lower")) is False
    assert equivalent(Interval(1.0)) is None


def test_arms_are_tested_outward_within_their_family_and_side() -> None:
    rule, control = ("sqrt",), ("fixed",)
    arms = {
        "ref": OutwardArm(rule, 64, None),
        "half": OutwardArm(rule, 32, False),
        "quarter": OutwardArm(rule, 16, True),
        "double": OutwardArm(rule, 128, True),
        "other_shape": OutwardArm(rule, 64, False),
        "control": OutwardArm(control, 128, False),
        "large_control": OutwardArm(control, 256, True),
        "unknown": OutwardArm(rule, 256, None),
        "large": OutwardArm(rule, 512, True),
    }
    found = aligned_outward(arms, "ref")
    assert found["quarter"] is False, "the arm between it and the reference is not aligned"
    assert found["double"] is True, "another shape of the same batch does not stand between"
    assert found["large_control"] is False
    assert found["unknown"] is None and found["large"] is False
    assert found["ref"] is None


def test_without_a_faster_arm_the_reference_stays() -> None:
    candidates = [
        Candidate("a", "reference", Interval(1.0, 1.0, 1.0)),
        Candidate("b", "inconclusive", Interval(0.95, 0.85, 1.05)),
        Candidate("c", "target_not_reached", Interval(None, 2.0, None, "lower")),
    ]
    advice = recommend(candidates, "a", {})
    assert (advice.arm, advice.r_T, advice.ties) == ("a", 1.0, ("b",))
    assert "c" in advice.reason


def test_arms_that_may_be_as_fast_are_named() -> None:
    candidates = [
        Candidate("b", "faster", Interval(0.65, 0.6, 0.7)),
        Candidate("c", "faster", Interval(0.66, 0.6, 0.72)),
        Candidate("d", "faster", Interval(0.9, 0.85, 0.95)),
    ]
    against = {"b": {"c": Interval(1.02, 0.95, 1.09), "d": Interval(1.4, 1.3, 1.5)}}
    assert recommend(candidates, "a", against).ties == ("c",)
