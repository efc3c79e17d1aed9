"""Sixty trials of the embedded model on a Ray cluster of this machine, in which something random is killed again and again.

What is killed when is drawn before it starts. A driver that was killed is started again by the same command, another
node takes the place of one that was killed, and at times the new one does not see the results folder.

    python -m tests.soak.chaos FOLDER [SEED]    runs it and prints its figures
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import yaml

from harness.tracking.jsonl import read_records
from tests.harness.nodes import Nodes

Kind = Literal["worker", "node", "driver"]
CLOCKS = {"wall_s", "seconds", "throughput", "engine", "trainer"}
NUM_FAULTS, MEAN_WAIT_S = 60, 20.0
MOST: dict[Kind, int] = {"node": 3, "driver": 3}
AMONG_THE_FIRST = 12  # faults, so that a quick machine meets the drivers and nodes too
MOST_WITHOUT_RECORD = 3  # faults: a machine so slow that nothing happens between them gets its time
LIMIT_S = 45 * 60.0
# One attempt each: a kill that used one up would show as a failed trial.
SWEEP: dict[str, Any] = {
    "sweep": "chaos",
    "question": "Does anything get lost?",
    "model": {"name": "tiny-llama", "warm_start": {"steps": 30, "num_responses": 64, "lr": 2e-3}},
    "task": {"name": "reverse_digits", "num_digits": 3},
    "batch": {"group_size": 4, "micro_batch_size_per_gpu": 64},
    "algorithm": {"name": "grpo"},
    "optimizer": {"lr": 1.5e-4, "lr_rule": "sqrt"},
    "evaluation": {"every_samples": 512, "num_prompts": 32, "metric": "eval/expected_score", "target": 0.78},
    "execution": {"max_attempts": 1, "checkpoint_every_samples": 1024},
    "timing": {"rounds": 0},
    "tracking": {"wandb": False},
    "budget_samples": 49152,  # enough for twenty faults on two quiet cores
    "seeds": 20,
    "reference": {"batch.num_prompts": 8},
    "arms": [{"batch.num_prompts": [8, 16, 32]}],
}
NUM_TRIALS = 60


@dataclass(frozen=True)
class Fault:
    """What is killed `wait_s` after the one before. `pick` in [0, 1) says which of those that can be."""

    wait_s: float
    kind: Kind
    pick: float
    new_node_sees_results: bool


@dataclass(frozen=True)
class Figures:
    """What came of it. A fault is survived if records were written after it."""

    seconds: float
    injected: dict[str, int]
    survived: int
    samples: int
    samples_lost: int
    samples_again: int
    wrong: tuple[str, ...]


def draw_faults(seed: int) -> list[Fault]:
    """As long as the list is: a machine too slow for it runs the rest of the trials in peace."""
    random = np.random.default_rng(seed)
    kinds: list[Kind] = ["worker"] * NUM_FAULTS
    rare: list[Kind] = [kind for kind, most in MOST.items() for _ in range(most)]
    for place, kind in zip(random.choice(AMONG_THE_FIRST, len(rare), replace=False), rare, strict=True):
        kinds[place] = kind
    return [
        Fault(float(random.uniform(0, 2 * MEAN_WAIT_S)), kind, float(random.random()), bool(random.random() < 0.5))
        for kind in kinds
    ]


def records_of(results: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of each trial in the order of its file; a line that is none fails."""
    found = {}
    for path in sorted((results / "chaos" / "trials").glob("*/metrics.jsonl")):
        found[path.parent.name], num_bad = read_records(path)
        assert num_bad == 0, path
    return found


def last_of(records: Sequence[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """What counts: the last record of each (kind, samples_trained), without clocks."""
    return {(r["kind"], r["samples_trained"]): {k: v for k, v in r.items() if k not in CLOCKS} for r in records}


class Driver:
    """The command of a user, started again as often as it is killed."""

    def __init__(self, sweep: Path, results: Path, log: Path, address: str | None = None) -> None:
        self._command = [sys.executable, "-m", "harness", "sweep", str(sweep), "--results", str(results)]
        self._environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        self._environment |= {"RAY_ADDRESS": address} if address else {}
        self._log = log
        self.starts = 0
        self.start()

    def start(self) -> None:
        with open(self._log, "a") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, env=self._environment, start_new_session=True
            )
        self.starts += 1

    @property
    def code(self) -> int | None:
        return self.process.poll()

    @property
    def is_working(self) -> bool:
        """Whether this start of it has started a trial."""
        return self.output().rpartition("starting workers ...")[2].find(": started") >= 0

    def output(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def driving(driver: Driver) -> Iterator[Driver]:
    """None outlives its test."""
    try:
        yield driver
    finally:
        driver.kill()


def chaos(folder: Path, seed: int) -> Figures:
    """Run the sixty trials undisturbed, then with faults; what differs is named in the figures."""
    sweep, expected_in, results = folder / "chaos.yaml", folder / "undisturbed", folder / "results"
    results.mkdir(parents=True)
    sweep.write_text(yaml.safe_dump(SWEEP))
    with driving(Driver(sweep, expected_in, folder / "undisturbed.log")) as alone:
        assert alone.process.wait(LIMIT_S) == 0, alone.output()
    started_s = time.monotonic()
    with Nodes(results) as nodes:
        alive = [nodes.add(1), nodes.add(1, sees_results=False)]
        with driving(Driver(sweep, results, folder / "driver.log", nodes.address)) as driver:
            told = [f"seed {seed}"]
            faults = _disturb(driver, nodes, alive, draw_faults(seed), results, told, started_s)
            code = driver.process.wait(max(1.0, LIMIT_S - (time.monotonic() - started_s)))
            output = driver.output()
    (folder / "faults.log").write_text("\n".join(told) + "\n")
    return _figures(folder, faults, code, output, time.monotonic() - started_s)


def _disturb(
    driver: Driver,
    nodes: Nodes,
    alive: list[Any],
    faults: Sequence[Fault],
    results: Path,
    told: list[str],
    started_s: float,
) -> list[tuple[Kind, int]]:
    """Inject the faults while the sweep runs: (kind, records that there were) of each."""
    done: list[tuple[Kind, int]] = []
    for fault in faults:
        until_s = time.monotonic() + fault.wait_s
        while driver.code is None and time.monotonic() < until_s:
            time.sleep(0.1)
        before = [records for _, records in done[-MOST_WITHOUT_RECORD:]]
        victims: list[Any] = []
        while driver.code is None and not victims:
            time.sleep(0.1)
            if before != [_num_records(results)] * MOST_WITHOUT_RECORD:
                victims = _victims(fault.kind, driver, alive)
        if driver.code is not None:
            break
        victim = victims[int(fault.pick * len(victims))]
        done.append((fault.kind, _num_records(results)))
        told.append(f"{time.monotonic() - started_s:7.1f} s: {fault.kind} {_name(victim)}")
        print(told[-1], flush=True)
        match fault.kind:
            case "worker":
                with suppress(ProcessLookupError):  # its own end may have been quicker
                    os.kill(victim, signal.SIGKILL)
            case "node":
                alive.remove(victim)
                nodes.kill(victim)
                alive.append(nodes.add(1, sees_results=fault.new_node_sees_results))
            case "driver":
                driver.kill()
                driver.start()
    return done


def _num_records(results: Path) -> int:
    """Records that there are, while more are being written."""
    return sum(path.read_bytes().count(b"\n") for path in (results / "chaos" / "trials").glob("*/metrics.jsonl"))


def _victims(kind: Kind, driver: Driver, alive: Sequence[Any]) -> list[Any]:
    """What can be killed now. Workers are those of our own nodes: others may run on the machine."""
    if kind == "driver":
        return [driver] if driver.is_working else []
    if kind == "node":
        return list(alive)
    return sorted(process.pid for node in alive for process in _workers_on(node))


def _workers_on(node: Any) -> list[psutil.Process]:
    try:
        children = psutil.Process(node.all_processes["raylet"][0].process.pid).children(recursive=True)
        return [child for child in children if _is_worker(child)]
    except (psutil.NoSuchProcess, KeyError):  # the node is still starting
        return []


def _is_worker(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("ray::Worker")
    except psutil.NoSuchProcess:
        return False


def _name(victim: Any) -> str:
    if isinstance(victim, Driver):
        return str(victim.process.pid)
    return str(victim if isinstance(victim, int) else victim.unique_id[:8])


def _figures(folder: Path, faults: Sequence[tuple[Kind, int]], code: int, output: str, seconds: float) -> Figures:
    lost, again, wrong = compare(folder, code, output)
    samples = sum(sum(_steps(last_of(rows)).values()) for rows in records_of(folder / "undisturbed").values())
    num_records = sum(map(len, records_of(folder / "results").values()))
    survived = sum(records < num_records for _, records in faults)
    injected: Counter[str] = Counter(kind for kind, _ in faults)
    return Figures(round(seconds, 1), dict(injected), survived, samples, lost, again, tuple(wrong))


def compare(folder: Path, code: int, output: str) -> tuple[int, int, list[str]]:
    """(samples lost, samples computed again, what is wrong) of the disturbed run beside the undisturbed one."""
    expected, found = records_of(folder / "undisturbed"), records_of(folder / "results")
    lost, again = 0, 0
    wrong = [f"the driver ended with {code}"] if code else []
    for trial in sorted(expected.keys() | found.keys()):
        wanted, rows = last_of(expected.get(trial, [])), found.get(trial, [])
        have, sizes = last_of(rows), _steps(wanted)
        lost += sum(size for samples, size in sizes.items() if ("train", samples) not in have)
        times = Counter(r["samples_trained"] for r in rows if r["kind"] == "train")
        again += sum((count - 1) * sizes.get(samples, 0) for samples, count in times.items())
        if have != wanted:
            wrong.append(f"{trial}: other records than undisturbed")
        wrong += [f"{trial}: {what}" for what in _misbehaved(folder / "results" / "chaos" / "trials" / trial)]
    completed = _completed_in_table(output.rpartition("written in ")[0])
    if completed != NUM_TRIALS:
        wrong.append(f"the final table shows {completed} completed")
    ends = [line.rpartition("] ")[2].partition(",")[0] for line in output.splitlines() if ": completed" in line]
    wrong += [f"told twice: {end}" for end, count in Counter(ends).items() if count > 1]
    return lost, again, wrong


def _steps(records: dict[tuple[str, int], dict[str, Any]]) -> dict[int, int]:
    """Samples of each update, by the samples trained after it."""
    after = sorted(samples for kind, samples in records if kind == "train")
    return {samples: samples - before for before, samples in zip([0, *after], after, strict=False)}


def _misbehaved(folder: Path) -> Iterator[str]:
    if not (folder / "outcome.json").exists():
        yield "has no outcome"
        return
    outcome = json.loads((folder / "outcome.json").read_text())
    if (outcome["status"], outcome["samples_trained"]) != ("completed", SWEEP["budget_samples"]):
        yield f"{outcome['status']} at {outcome['samples_trained']} samples: {outcome['reason']}"
    log = (folder / "trial.log").read_text()
    if "attempt" in log.partition(" completed: ")[2]:
        yield "run again after its end"
    if list(folder.rglob("*.tmp")):
        yield "left unfinished files"


def _completed_in_table(output: str) -> int:
    """Of the last rows, one for each arm: "P8-G4-sqrt   20 completed   ..."."""
    rows = [line.split() for line in output.splitlines()[-len(SWEEP["arms"][0]["batch.num_prompts"]) :]]
    return sum(int(row[1]) for row in rows if len(row) > 2 and row[2].rstrip(",") == "completed")


if __name__ == "__main__":
    figures = chaos(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(json.dumps(asdict(figures), indent=2))
    sys.exit(bool(figures.wrong))
