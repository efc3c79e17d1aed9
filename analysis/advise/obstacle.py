"""What keeps records from holding any advice, whatever else is run."""

from __future__ import annotations

from analysis.advise.advice import Advice


def obstacle(advice: Advice) -> str:
    """Why there is no advice; "" where there is or may be one.

    Of records that are the harness's own the target alone can be in the way: what else is missing it runs.
    """
    study, target = advice.study, advice.sweep.target
    if study is None or not study.trials:
        return ""
    at_once = [trial for trial in study.trials if trial.arm == advice.reference and trial.crossing.censored == "left"]
    if at_once:
        score = min(float(trial.curve.scores_K[0]) for trial in at_once)
        return f"a run of the reference scores {score:.3g} before it is trained, so the target must be higher"
    if advice.settings.owned:
        return ""
    if all(trial.crossing.censored for trial in study.trials):
        score = max(float(trial.curve.scores_K.max()) for trial in study.trials)
        return f"no run reaches {target:g}, and the highest score is {score:.3g}: the target must be lower"
    if not advice.decision.timed:
        return "no seconds were recorded, so which batch is faster is not known"
    return ""
