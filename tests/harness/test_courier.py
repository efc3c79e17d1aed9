"""Records of workers that do not see the results folder, without Ray: nodes are folders here, and so is their driver."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import harness.courier as courier_module
from harness.courier import Courier, Home, Inbox, Shelf, open_home
from harness.errors import EnvironmentProblem
from harness.jobs import Died, Event, Failed, Finished, Item, Job, MemberDied, Piece
from harness.run_dir import RunDir
from harness.tracking.jsonl import read_records
from tests.harness.faults import small_plan, trial_folder, undisturbed, values

TRIAL = small_plan([8], seeds=1).trials[0]
OWNED = f"faults/trials/{TRIAL.trial_id}"
ALL = [64, 128, 192, 256, 320, 384, 448, 512]


@dataclass
class Driver:
    """A results folder, and one job at a time of a worker elsewhere."""

    results: Path

    def home(self) -> Home:
        """As at the start of each call."""
        return open_home(self.results / "faults")

    def job(self, function: str = "tests.harness.faults:run_trial", *args: Any) -> Job:
        folder = self.results / OWNED
        return Job("trial", function, args or (TRIAL, folder, self.results), (OWNED,), ("faults/wandb",))

    def take(self, job: Job, stream: Iterator[Event | Piece], until: int | None = None) -> list[Event]:
        """Write what comes, to the end or to the record of `until` samples, after which the worker is gone."""
        inbox, events = Inbox(self.results, job), []
        for each in stream:
            if isinstance(each, Piece):
                inbox.take(each)
                continue
            events.append(each)
            if isinstance(each, Item) and until is not None and each.value.samples_trained == until:
                inbox.close(ended=False)
                return events
        inbox.close(ended=True)
        return events

    def samples(self) -> list[int]:
        return [record["samples_trained"] for record in read_records(self.results / OWNED / "metrics.jsonl")[0]]


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    (tmp_path / "driver" / "results" / "faults").mkdir(parents=True)
    (tmp_path / "driver" / "results" / "faults" / "lock").touch()
    return Driver(tmp_path / "driver" / "results")


@pytest.fixture
def node(tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Courier]:
    """A worker on a node of its own each time."""

    def start(home: Home | None = None) -> Courier:
        folder = tmp_path / "nodes" / str(len(list(tmp_path.glob("nodes/*"))))
        folder.mkdir(parents=True)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        return Courier(home or driver.home(), Shelf(driver.results))

    return start


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_each_record_is_with_the_driver_before_the_next_is_made(
    driver: Driver, node: Callable[[], Courier], tmp_path: Path
) -> None:
    job, events = driver.job(), []
    inbox = Inbox(driver.results, job)
    outcome = driver.results / OWNED / "outcome.json"
    for each in node().execute(job):
        if isinstance(each, Piece):
            assert each.path.startswith(f"{OWNED}/") and not outcome.exists()  # which comes last
            inbox.take(each)
        elif isinstance(each, Item):
            events.append(each.value.samples_trained)
            assert driver.samples() == events
    inbox.close(ended=True)
    assert events == ALL and outcome.exists()
    assert values(driver.results, TRIAL) == undisturbed(TRIAL)
    assert sorted(path.name for path in driver.results.iterdir()) == ["faults"]
    assert not [path for path in tmp_path.rglob("metrics.jsonl") if "nodes" in path.parts]  # it leaves nothing there


def test_what_a_worker_elsewhere_leaves_is_what_one_here_does(driver: Driver, node: Callable[[], Courier]) -> None:
    driver.take(driver.job(), node().execute(driver.job()))
    elsewhere = tree(driver.results / OWNED)
    local = driver.results.parent / "local"
    job = Job("trial", "tests.harness.faults:run_trial", (TRIAL, local / OWNED, local))
    list(courier_module.execute(job))
    here = tree(local / OWNED)
    assert (
        elsewhere.keys()
        == here.keys()
        >= {"metrics.jsonl", "outcome.json", "config.json", "checkpoint/000000000512.pt"}
    )
    assert all(elsewhere[name] == content for name, content in here.items())


def test_a_killed_worker_costs_a_checkpoint_interval_on_the_next_node(
    driver: Driver, node: Callable[[], Courier]
) -> None:
    job = driver.job()
    driver.take(job, node().execute(job), until=320)
    # The last piece was cut short by the kill, and so was a checkpoint.
    with open(driver.results / OWNED / "metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "train", "samples_tr')
    (driver.results / OWNED / "checkpoint" / "000000000384.pt.tmp").write_bytes(b"half")
    assert isinstance(driver.take(job, node().execute(job))[-1], Finished)
    # From the checkpoint of 256: 320 is computed again, nothing else.
    assert driver.samples() == [64, 128, 192, 256, 320, 320, 384, 448, 512]
    assert values(driver.results, TRIAL) == undisturbed(TRIAL)
    assert not list(driver.results.rglob("*.tmp"))


def test_a_driver_that_restarts_goes_on_with_what_had_reached_it(driver: Driver, node: Callable[[], Courier]) -> None:
    first, job = driver.home(), driver.job()
    worker = node(first)
    stream = worker.execute(job)
    driver.take(job, stream, until=192)
    # What the old worker makes from here on reaches nobody.
    assert sum(isinstance(event, Item) for event in stream) == 5
    assert driver.samples() == [64, 128, 192]
    second = driver.home()
    assert second.name == first.name and second.token != first.token and not first.is_seen() and second.is_seen()
    driver.take(job, node(second).execute(job))
    assert driver.samples() == [64, 128, 192, 192, 256, 320, 384, 448, 512]
    assert values(driver.results, TRIAL) == undisturbed(TRIAL)
    # A job that is done already is not done again.
    assert driver.take(job, node().execute(job))[-1] == Finished("trial")
    assert driver.samples() == [64, 128, 192, 192, 256, 320, 384, 448, 512]


def test_two_drivers_cannot_hold_one_trial(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.run_dir.LOCK_WAIT_S", 0.0)
    job = driver.job()
    with RunDir(driver.results / OWNED).lock(0.0), pytest.raises(EnvironmentProblem):
        Inbox(driver.results, job)


@pytest.mark.parametrize(
    "path",
    [
        "../outside",
        "/outside",
        f"{OWNED}/../../../../outside",
        "outside",
        "faults/plan.json",
        "faults/trials/another/metrics.jsonl",
        f"{OWNED}x/metrics.jsonl",
        "faults/wandb/no_folder",
    ],
)
def test_a_worker_writes_only_what_its_job_may(path: str, driver: Driver, tmp_path: Path) -> None:
    inbox = Inbox(driver.results, driver.job())
    before = tree(tmp_path)
    for offset in (0, -1):
        with pytest.raises(EnvironmentProblem, match="not in the results folder|none of its files"):
            inbox.take(Piece("trial", path, offset, b"here", True))
    inbox.close(ended=True)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("path", ["../secret", "faults/../../secret", "/secret"])
def test_the_shelf_holds_the_results_only(path: str, driver: Driver) -> None:
    (driver.results.parent / "secret").mkdir()
    (driver.results.parent / "secret" / "key").write_text("key")
    shelf = Shelf(driver.results)
    with pytest.raises(EnvironmentProblem, match="not in the results folder"):
        shelf.files(path)
    with pytest.raises(EnvironmentProblem, match="not in the results folder"):
        shelf.read(f"{path}/key", 0)


def test_a_file_in_many_pieces_replaces_the_one_before_once_it_is_whole(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, checkpoint = Inbox(driver.results, driver.job()), driver.results / OWNED / "checkpoint" / "64.pt"
    name = f"{OWNED}/checkpoint/64.pt"
    inbox.take(Piece("trial", name, 0, b"old", True))
    inbox.take(Piece("trial", name, 0, b"new, ", False))
    assert checkpoint.read_bytes() == b"old"
    inbox.take(Piece("trial", name, 5, b"whole", True))
    assert checkpoint.read_bytes() == b"new, whole"
    inbox.take(Piece("trial", name, -1, b"", True))
    assert not checkpoint.exists()
    inbox.close(ended=True)


def write_in_turns(folder: Path) -> Iterator[int]:
    """Files that grow, change and go, in a job's own folder; what others may have, in the folder it adds to."""
    folder.mkdir(parents=True, exist_ok=True)
    added = folder.parents[1] / "wandb" / "run-1"
    added.mkdir(parents=True)
    for turn in range(3):
        with open(folder / "trial.log", "a") as log:
            log.write(f"turn {turn} of three\n")
        (folder / "config.json").write_text(f"turn {turn}")
        (added / "log").write_text(f"turn {turn}")
        if turn == 1:
            (folder / "passing").write_text("short")
        else:
            (folder / "passing").unlink(missing_ok=True)
        yield turn


def test_pieces_smaller_than_the_files(
    driver: Driver, node: Callable[[], Courier], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four bytes; a growing file goes on where it was, whatever goes away here goes away there."""
    monkeypatch.setattr(courier_module, "PIECE_BYTES", 4)
    job = driver.job(f"{__name__}:write_in_turns", driver.results / OWNED)
    pieces = [each for each in node().execute(job) if isinstance(each, Piece)]
    logs = [piece for piece in pieces if piece.path.endswith("trial.log")]
    # "turn 0 of three\n" is 16 bytes: offsets 0, 4, 8, 12 and the empty end at 16, then on from there.
    assert [piece.offset for piece in logs] == [0, 4, 8, 12, 16, 16, 20, 24, 28, 32, 32, 36, 40, 44, 48]
    inbox = Inbox(driver.results, job)
    for piece in pieces:
        inbox.take(piece)
    added = driver.results / "faults" / "wandb" / "run-1"
    assert not added.exists()
    inbox.close(ended=True)
    assert (added / "log").read_text() == "turn 2"
    assert tree(driver.results / OWNED) == {
        "trial.log": b"turn 0 of three\nturn 1 of three\nturn 2 of three\n", "config.json": b"turn 2", "lock": b"",
    }  # fmt: skip


def test_what_a_killed_job_added_for_others_is_left_out(driver: Driver, node: Callable[[], Courier]) -> None:
    job = driver.job(f"{__name__}:write_in_turns", driver.results / OWNED)
    inbox = Inbox(driver.results, job)
    for each in node().execute(job):
        if isinstance(each, Piece):
            inbox.take(each)
    inbox.close(ended=False)
    assert list((driver.results / "faults" / "wandb").iterdir()) == []


def test_a_driver_that_is_gone_is_a_death_not_a_failure(
    driver: Driver, tmp_path: Path, node: Callable[[], Courier]
) -> None:
    class Gone:
        def files(self, folder: str) -> dict[str, int]:
            raise MemberDied("the driver's node is gone")

        def read(self, path: str, offset: int) -> bytes:
            raise MemberDied("the driver's node is gone")

    courier = node()
    courier._shelf = Gone()
    assert list(courier.execute(driver.job())) == [Died("trial", "the driver's node is gone")]


def fails(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "error.log").write_text("why\n")
    raise ZeroDivisionError("a made-up mistake")


def test_a_failure_brings_its_files_along(driver: Driver, node: Callable[[], Courier]) -> None:
    job = driver.job(f"{__name__}:fails", driver.results / OWNED)
    [event] = driver.take(job, node().execute(job))
    assert isinstance(event, Failed) and event.reason == "ZeroDivisionError: a made-up mistake"
    assert (trial_folder(driver.results, TRIAL) / "error.log").read_text() == "why\n"


def test_folders_of_dead_processes_are_deleted_and_those_of_living_ones_are_not(
    driver: Driver, node: Callable[[], Courier], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    living = node()
    base = Path(tempfile.gettempdir())
    code = (
        "import os, signal, sys; from pathlib import Path; from harness.courier import Courier, Home, Shelf; "
        "Courier(Home(Path(sys.argv[1]), '0123456789abcdef-dead'), Shelf(Path(sys.argv[1]).parent)); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(driver.results / "faults")], env={"TMPDIR": str(base)})
    assert done.returncode == -9 and len(list(base.iterdir())) == 2
    another = Courier(driver.home(), Shelf(driver.results))
    assert sorted(base.iterdir()) == sorted([living.root.parent, another.root.parent])
