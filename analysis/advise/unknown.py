"""What an advice cannot know from the records it has, a sentence each."""

from __future__ import annotations

import math

from analysis.advise.advice import Advice


def unknown(advice: Advice) -> list[str]:
    """In order of how much hangs on it."""
    evidence, settings, found = advice.evidence, advice.settings, []
    names = [candidate.arm for candidate in advice.arms]
    if not settings.owned:
        found.append(
            "These are records of runs that were made before: nothing was run for this advice, and it may rest on one "
            "run of an arm."
        )
    untimed = [arm for arm in names if arm not in evidence.speed]
    if untimed:
        found.append(f"No seconds are known of {', '.join(untimed)}: whether any of them is faster is left open.")
    if evidence.noise is None:
        found.append(
            "The noise scale of the gradient was not measured: nothing predicts r_N of arms that were not run."
        )
    if settings.owned and not evidence.branches:
        found.append("There are no branches: r_N of arms that were not run is known by the noise scale alone.")
    if not settings.owned and not any(name.startswith("branch") for name in advice.sweep.arms.columns):
        found.append("There are no checkpoints to branch from.")
    if math.isnan(advice.rates.chosen) or len(advice.rates.grid) < 2:
        found.append("The learning rate was not tuned: a reference below its best rate makes larger batches look good.")
    if advice.rates.wanted is not None and not any(
        math.isclose(row["lr"], advice.rates.wanted, rel_tol=0.01) for row in advice.rates.grid
    ):
        found.append(f"The best rate is the last of the grid; {advice.rates.wanted:.3g} was not tried.")
    sizes = {candidate.group_size for candidate in advice.arms}
    if len(sizes) > 1 and (evidence.noise is None or evidence.noise.between_frac is None):
        found.append("Noise within and between prompts is not known apart: other group sizes rest on runs alone.")
    if len(sizes) == 1:
        found.append(f"One group size, {next(iter(sizes))}, was looked at: another may need fewer samples.")
    found.append("Everything holds given the model that the runs started from, and the machine they were timed on.")
    return found
