"""The advice on a sweep as far as its records go: what is known, what it says, and what would settle it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from analysis.advise.branches import Branch, arm_key, local_ratios, read_branches
from analysis.advise.decide import FEWEST_RUNS, Decision, Rule
from analysis.advise.evidence import Candidate, Evidence
from analysis.advise.rates import Rates, choose_rate
from analysis.advise.read import Candidates, evidence_of, folder_beside, restricted
from analysis.advise.settings import Settings, read_settings
from analysis.advise.stability import Outcomes
from analysis.errors import InputError
from analysis.load import Asked, Sweep, load_sweep
from analysis.study import Study


@dataclass(frozen=True)
class Advice:
    """A sweep with the branches that belong to it. workers: how many trials can run at once."""

    sweep: Sweep
    settings: Settings
    branch_sweep: Sweep | None = None
    workers: int = 1

    @cached_property
    def candidates(self) -> Candidates:
        """The arms it is about, at every rate."""
        return Candidates(self.sweep)

    @cached_property
    def rates(self) -> Rates:
        """The learning rate it goes on with."""
        return choose_rate(self.candidates, self.settings)

    @cached_property
    def _at_rate(self) -> tuple[tuple[Candidate, ...], str]:
        rate = self.rates.chosen
        # NaN is the one key of a plan that does not say its rates.
        key = rate if rate == rate else next(iter(self.candidates.rates))
        return self.candidates.at(key)

    @property
    def arms(self) -> tuple[Candidate, ...]:
        """The candidates at the chosen rate."""
        return self._at_rate[0]

    @property
    def reference(self) -> str:
        """The reference at the chosen rate."""
        return self._at_rate[1]

    @cached_property
    def own(self) -> Sweep:
        """The sweep with the candidates at the chosen rate alone."""
        return restricted(self.sweep, [candidate.arm for candidate in self.arms], self.reference)

    @cached_property
    def study(self) -> Study | None:
        """The study of the candidates; None before any of them has a curve."""
        try:
            return Study(self.own)
        except InputError:
            if self.settings.owned:
                return None
            raise

    @cached_property
    def branches(self) -> list[Branch]:
        """The finished branches from runs of the chosen rate."""
        if self.branch_sweep is None:
            return []
        keys = {arm_key(dict(self.own.arms.loc[c.arm])): c.arm for c in self.arms}
        return read_branches(self.branch_sweep, self.own, keys)

    @cached_property
    def evidence(self) -> Evidence:
        """What the model looks at."""
        if self.study is None:
            return Evidence(self.arms, self.reference)
        return self.evidence_at(self.study)

    def evidence_at(self, study: Study) -> Evidence:
        """The evidence at the target of another study of the same records."""
        stability = None if self._every_rate is None else Outcomes(self._every_rate.at(study.sweep.target)).stability()
        return evidence_of(study, self.arms, local_ratios(self.branches), stability)

    @cached_property
    def _every_rate(self) -> Study | None:
        """The study of the candidates at every rate, that of the chosen one for a reference."""
        return Study(restricted(self.sweep, self.candidates.kept, self.reference))

    @property
    def rule(self) -> Rule:
        """When it stands."""
        needed = FEWEST_RUNS if self.settings.owned else 1
        return Rule(self.settings.tolerance, self.settings.confidence, needed)

    @cached_property
    def decision(self) -> Decision:
        """What the evidence says."""
        return Decision(self.evidence, self.rule)

    @property
    def everything(self) -> Sequence[Sweep]:
        """All that was run for it: the candidates at every rate and their branches."""
        kept = restricted(self.sweep, self.candidates.kept, self.sweep.reference_arm)
        return [kept, *([self.branch_sweep] if self.branch_sweep else [])]


def load_advice(folder: Path, target: Asked = None, workers: int = 1) -> Advice:
    """The advice on the sweep in a folder. Raises InputError where the folder cannot be used."""
    settings = read_settings(folder)
    sweep = load_sweep(folder, target)
    beside = folder_beside(folder, settings.branches)
    branches = load_sweep(beside, sweep.target) if beside else None
    return Advice(sweep, settings, branches, workers)


def configured(sweep: Sweep, arm: str, *names: str) -> Any:
    """A value of an arm's configuration."""
    return next(trial.configured(*names) for trial in sweep.plan.trials if trial.arm == arm)
