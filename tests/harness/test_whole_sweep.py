"""A real local sweep, seen from outside: what it says, what it writes, where it listens."""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from harness.tracking.jsonl import read_records

SECRETS = {"WANDB_API_KEY": "0123456789abcdef" * 3, "HF_TOKEN": "hf_planted0123456789planted0123456789"}
pytestmark = pytest.mark.slow
EVENT = re.compile(
    r"starting workers \.\.\.|workers: \d+, threads each: 1|models and prompts \.\.\.|warm start.*"
    r"|\[\d/2\] P8-G8-sqrt seed \d: .*|warning: .*|timing 1 arms, nothing else running: .*|arm +seeds .*"
    r"|P8-G8-sqrt +1 completed, 1 failed .*|failed: P8-G8-sqrt-s1-\w+: RuntimeError: refused: .*"
    r"|written in .*|to send W&B what it lacks: .*|next: .*"
)


@dataclass(frozen=True)
class Seen:
    """The folder that everything was written to, what was printed, and (command, address) of every listening socket."""

    folder: Path
    code: int
    output: str
    listening: set[tuple[str, str]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("whole")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "RAY_", "HF_"))}
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "HF_HOME"):
        kept[name] = str(folder / "client")
    ray_folder = Path("/tmp") / f"r{os.getpid()}"  # the paths of sockets are short
    environment = (
        kept | SECRETS | {"WANDB_ERROR_REPORTING": "false", "RAY_TMPDIR": str(ray_folder), "HOME": str(folder)}
    )
    (folder / "ray").symlink_to(ray_folder)
    command = [sys.executable, "-m", "tests.harness.leaky", str(folder / "results")]
    with open(folder / "output", "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            listening = _watch(process)
        finally:
            process.kill()
            process.wait()
    yield Seen(folder, process.returncode, (folder / "output").read_text(), listening)
    shutil.rmtree(ray_folder, ignore_errors=True)


def _watch(process: subprocess.Popen[bytes]) -> set[tuple[str, str]]:
    """Every socket of the process and of those below it that takes connections, until it ends."""
    found: set[tuple[str, str]] = set()
    driver, end_s = psutil.Process(process.pid), time.monotonic() + 300
    while process.poll() is None:
        assert time.monotonic() < end_s, "the sweep does not end"
        for each in [driver, *driver.children(recursive=True)]:
            try:
                sockets = [each_socket for each_socket in each.net_connections("inet") if not each_socket.raddr]
                found |= {(" ".join(each.cmdline()), socket.laddr.ip) for socket in sockets if socket.laddr}
            except psutil.Error:  # it has ended
                continue
        time.sleep(0.2)
    return found


def files(folder: Path) -> list[Path]:
    return [path for path in [*folder.rglob("*"), *(folder / "ray").resolve().rglob("*")] if path.is_file()]


def test_it_ends_as_it_should(seen: Seen) -> None:
    assert seen.code == 1, seen.output
    [done, failed] = sorted(
        (seen.folder / "results" / "faults" / "trials").iterdir(), key=lambda path: "s1" in path.name
    )
    assert '"completed"' in (done / "outcome.json").read_text()
    assert '"reason": "RuntimeError: refused: *** ***"' in (failed / "outcome.json").read_text()
    assert (failed / "error.log").read_text().count("Traceback (most recent call last)") == 2
    assert read_records(done / "metrics.jsonl")[0][-1]["samples_trained"] == 256


def test_no_key_is_in_anything_it_wrote_or_said(seen: Seen) -> None:
    written = files(seen.folder)
    names = {path.name for path in written}
    # What would hold one: the client's offline folders, Ray's logs, ours.
    assert {"error.log", "trial.log", "outcome.json", "config.json", "output", "raylet.out"} <= names
    assert any(name.endswith(".wandb") for name in names) and any("tfevents" in name for name in names)
    for value in SECRETS.values():
        assert [str(path) for path in written if value.encode() in path.read_bytes()] == []


def test_it_listens_on_the_loopback_only(seen: Seen) -> None:
    assert any("raylet" in command for command, _ in seen.listening)
    outside = {
        (command, ip)
        for command, ip in seen.listening
        if not ipaddress.ip_address(ip.removeprefix("::ffff:")).is_loopback
    }
    assert outside == set()


def test_it_says_one_line_an_event_and_nothing_of_its_libraries(seen: Seen) -> None:
    lines = seen.output.splitlines()
    assert [line for line in lines if not EVENT.fullmatch(line.rstrip())] == []
    assert "chatter" not in seen.output
    assert (
        sum("started" in line for line in lines) == 3 and sum("completed, 256 samples" in line for line in lines) == 1
    )
    [log] = (seen.folder / "results" / "faults" / "trials").glob("P8-G8-sqrt-s1-*/trial.log")
    told = log.read_text()
    assert "warning: some.library: refused: *** ***" in told and "chatter in a log" not in told
    assert "attempt 2: RuntimeError: refused: *** ***" in told
