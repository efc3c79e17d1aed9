"""The procedure: ask what is missing, run it, ask again, until the advice stands or the budget is used.

results/<sweep>-advise/plan.json          what may be run
results/<sweep>-advise/advise.json        how sure the advice has to be, and where the rest lies
results/<sweep>-advise/advise.log.jsonl   one line a step: what was run, why, what it cost
results/<sweep>-advise/advise.step.json   the step under way; where its process is killed the next call writes its line
results/<sweep>-advise/advice/            the answer
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from harness.advise import words
from harness.advise.brain import Answer, Ask, Item, ask_analysis
from harness.advise.budget import Budget, Cost, last_record_s, samples_used, seconds_used
from harness.advise.hand import Hand, workers_of
from harness.errors import InputError
from harness.plan_file import write_plan
from harness.run_dir import disk_problem, exclusive, is_disk_problem, read_json, write_json
from harness.signals import listening
from harness.sweep import INTERRUPTED
from harness.tables import console, plain
from harness.tracking.jsonl import JsonlFile, read_objects

SETTINGS, LOG, STEP = "advise.json", "advise.log.jsonl", "advise.step.json"


def run_advice(hand: Hand, budget: Budget, ask: Ask = ask_analysis, clock: Callable[[], float] = time.monotonic) -> int:
    """Go on with an advice until it stands, the budget is used or nothing is left. Returns the exit code.

    0: done; 1: a trial failed; 130: Ctrl-C. The same call goes on, and repeats nothing.
    """
    for name in (SETTINGS, LOG, STEP, "advise.lock"):
        if (path := hand.folder / name).is_dir():
            raise InputError(
                f"{path}: a folder is in the way of this file; move it away, or give another --results DIR"
            )
    try:
        write_plan(hand.study.plan, hand.folder)
        busy = f"{hand.folder}: another advise is running in this folder; wait for it, or give another --results DIR"
        with exclusive(hand.folder / "advise.lock", 0.0, busy), listening():
            return _Procedure(hand, budget, ask, clock).run()
    except OSError as error:
        if not is_disk_problem(error):
            raise
        raise disk_problem(error) from error


class _Procedure:
    """One call of run_advice, its folder locked."""

    def __init__(self, hand: Hand, budget: Budget, ask: Ask, clock: Callable[[], float]) -> None:
        self.hand, self.budget, self.ask, self.clock = hand, budget, ask, clock
        self.log, self.under_way = hand.folder / LOG, hand.folder / STEP
        self.workers = workers_of(hand.study.plan.trials[0].config)
        self._keep_what_was_killed()
        self.failed_before, self.with_branches = hand.failed(), True
        self.before_s = seconds_used(self.log, hand.folders, self.workers)
        self.begun_s = clock()
        self.run_already: set[str] = set()
        self.some_failed = False
        self.console = console()

    def run(self) -> int:
        self._write_settings()
        self._tell_what_it_is_about()
        while True:
            asked_s = self.clock()
            answer = self.ask(self.hand.folder, self.workers)
            self.tell(words.known(answer.content, self.cost))
            if self._goes_without_branches(answer):
                continue
            items, why_ended = self._choose(answer)
            if why_ended:
                return self._end(answer, why_ended)
            self.tell(f"  next: {words.planned(items)}")
            if self._step(items, asked_s) == INTERRUPTED:
                return INTERRUPTED

    @property
    def cost(self) -> Cost:
        """Of all calls, this one's up to now."""
        return Cost(samples_used(self.hand.folders), self.before_s + self.clock() - self.begun_s)

    def _goes_without_branches(self, answer: Answer) -> bool:
        """Whether branches that could not be run are all that is asked for: from now on it is asked without any."""
        branches = any(item["do"] == "branch" for item in answer.next)
        if not branches or not self.with_branches or self._not_yet_run(answer.next):
            return False
        self.with_branches = False
        self._write_settings()
        self.tell("  goes on without these branches")
        return True

    def _write_settings(self) -> None:
        none = {} if self.with_branches else {"branch_points": 0}
        write_json(self.hand.folder / SETTINGS, self.hand.study.as_json(self.workers) | none)

    def _choose(self, answer: Answer) -> tuple[tuple[Item, ...], str]:
        """(what to run now, why to end): what failed in earlier calls, then what is asked for."""
        stands = answer.content.get("separated")
        if not stands and (items := self._affordable(self.failed_before)):
            return items, ""
        if not answer.next:
            return (), "the advice stands" if stands else "nothing is left to run"
        new = self._not_yet_run(answer.next)
        if not new:
            return (), "nothing is left to run: what is asked for has just been run and did not end well"
        if items := self._affordable(new):
            return items, ""
        cost = self.hand.expected(new[0], self._seconds_per_sample())
        return (), (
            f"the budget of {words.limit(self.budget)} is used: {words.planned(new[:1])} would take about "
            f"{words.spent(cost)} more"
        )

    def _not_yet_run(self, items: Sequence[Item]) -> list[Item]:
        return [item for item in items if _key(item) not in self.run_already]

    def _affordable(self, items: Sequence[Item]) -> tuple[Item, ...]:
        """The first kind of them that this call has not run, as far as the budget reaches."""
        new, total, speed = self._not_yet_run(items), self.cost, self._seconds_per_sample()
        found: list[Item] = []
        for item in new:
            total += self.hand.expected(item, speed)
            if item["do"] != new[0]["do"] or not self.budget.allows(total):
                break
            found.append(item)
        return tuple(found)

    def _seconds_per_sample(self) -> float | None:
        """Of the steps so far that trained; None before the first."""
        lines = [line for line in read_objects(self.log)[0] if line.get("samples") and line.get("seconds")]
        samples = sum(line["samples"] for line in lines)
        return sum(line["seconds"] for line in lines) / samples if samples else None

    def _step(self, items: Sequence[Item], asked_s: float) -> int:
        """Run the items and keep a line on it, however it ends."""
        samples, code = samples_used(self.hand.folders), None
        what = [name for item in items for name in words.names(item)]
        line = {"step": self._steps() + 1, "do": items[0]["do"], "what": what, "why": items[0]["why"]}
        began_s = time.time() - (self.clock() - asked_s)
        write_json(self.under_way, line | {"samples_before": samples, "began_s": began_s})
        left = None if self.budget.seconds is None else self.budget.seconds - self.cost.seconds
        try:
            code = self.hand.run(items, left)
        finally:
            self._keep(line, samples_used(self.hand.folders) - samples, self.clock() - asked_s, code)
        self.run_already |= {_key(item) for item in items}
        self.some_failed |= code == 1
        return code

    def _keep(self, line: Mapping[str, Any], samples: int, seconds: float, code: int | None) -> None:
        with closing(JsonlFile(self.log)) as file:
            file.append({**line, "samples": samples, "seconds": round(seconds, 3), "exit_code": code})
        self.under_way.unlink(missing_ok=True)

    def _keep_what_was_killed(self) -> None:
        """The line of a step whose process was killed: it lasted until the last record of what it ran."""
        line = read_json(self.under_way) or {}
        before, began_s = line.pop("samples_before", None), line.pop("began_s", None)
        if isinstance(before, int) and isinstance(began_s, float) and line.get("step") == self._steps() + 1:
            last_s = last_record_s((*self.hand.folders, self.hand.results / self.hand.study.speed))
            self._keep(line, samples_used(self.hand.folders) - before, max(0.0, last_s - began_s), None)

    def _steps(self) -> int:
        return len(read_objects(self.log)[0])

    def _tell_what_it_is_about(self) -> None:
        study = self.hand.study
        for arm, why in study.left_out.items():
            self.tell(f"no candidate: {arm}: {why}")
        if self.budget != Budget():
            self.tell(f"budget {words.limit(self.budget)}, of which {words.spent(self.cost)} are used")

    def _end(self, answer: Answer, why: str) -> int:
        """The advice in words, what it cost, and where it lies."""
        cost, full = self.cost, self.hand.study.full_sweep_samples
        self.tell(f"ended: {why}")
        for line in answer.text.rstrip().splitlines():
            self.console.print(plain(line), highlight=False, soft_wrap=True)
        self.tell(f"cost: {words.spent(cost)}; {cost.samples / full:.0%} of the {full:,} samples of the whole sweep")
        report = self.hand.folder / "advice" / "report.html"
        self.tell(f"written in {self.hand.folder}: {report if report.exists() else report.with_name('advice.json')}")
        return 1 if self.some_failed else 0

    def tell(self, text: str) -> None:
        self.console.print(plain(text), highlight=False, soft_wrap=True)


def _key(item: Item) -> str:
    """The same for two items that would run the same."""
    return " ".join((item["do"], *words.names(item)))
