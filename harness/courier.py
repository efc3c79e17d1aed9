"""Files between the driver's results folder and workers that do not see it. Knows nothing of Ray.

Such a worker does its jobs in a folder of its own. What a job reads is copied there from the driver's Shelf; what it
writes goes to the driver as Pieces in the stream of the job's events, a record before the next is made. The driver's
Inbox puts them where the worker would have: a node that dies is no more than a stream that ends.

    <tmp>/harness-<token>/            one for each call of a sweep and node; deleted by the next once nobody holds it
      lock                            held (flock, shared) by the processes that use the folder
      warm_starts/  models/           what they share
      <process id>/                   stands for the results folder in one process; those two are links there
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from harness.errors import EnvironmentProblem
from harness.jobs import Died, Event, Failed, Finished, Job, MemberDied, Piece, execute
from harness.run_dir import RunDir, put_file, put_folder

PIECE_BYTES = 4 * 1024**2
SHARED = ("warm_starts", "models")
UNSEEN_VARIABLE = "HARNESS_RESULTS_UNSEEN"  # set on a node: as if it did not see the driver's folder, for tests
_APPENDED = (".jsonl", ".log")


@dataclass(frozen=True)
class Home:
    """The driver's results folder as its workers are told of it; `token` is in the sweep's lock file."""

    sweep_dir: Path
    token: str

    @property
    def results(self) -> Path:
        return self.sweep_dir.parent

    @property
    def name(self) -> str:
        """Names the sweep folder over all calls: the token's first part."""
        return self.token.partition("-")[0]

    def is_seen(self) -> bool:
        """Whether this process sees the folder, not one of the same name."""
        if os.environ.get(UNSEEN_VARIABLE):
            return False
        try:
            return (self.sweep_dir / "lock").read_text() == self.token and os.access(self.sweep_dir, os.W_OK)
        except (OSError, UnicodeDecodeError):
            return False


def open_home(sweep_dir: Path) -> Home:
    """Sign the lock file of the sweep folder, which this process holds: the first part stays, the second is new."""
    path = sweep_dir / "lock"
    name = path.read_text(errors="replace").partition("-")[0]
    if len(name) != 16 or not name.isalnum():
        name = secrets.token_hex(8)
    token = f"{name}-{secrets.token_hex(8)}"
    path.write_text(token)
    return Home(sweep_dir.resolve(), token)


class Shelf:
    """In a process on the driver's node: reads files of the results folder for workers elsewhere."""

    def __init__(self, results: Path) -> None:
        self._results = results

    def files(self, folder: str) -> dict[str, int]:
        """Each file of the folder, by its path there, and its size in bytes; none where there is no folder."""
        root = inside(self._results, folder)
        return {path.relative_to(root).as_posix(): path.stat().st_size for path in _files(root)}

    def read(self, path: str, offset: int) -> bytes:
        """At most PIECE_BYTES of a file."""
        with open(inside(self._results, path), "rb") as file:
            file.seek(offset)
            return file.read(PIECE_BYTES)


class RemoteShelf(Protocol):
    """A Shelf in another process. Its calls raise harness.jobs.MemberDied where that process is gone."""

    def files(self, folder: str) -> dict[str, int]: ...

    def read(self, path: str, offset: int) -> bytes: ...


def inside(root: Path, relative: str) -> Path:
    """The path under `root`. EnvironmentProblem for one that leads out of it.

    >>> inside(Path("results"), "default/plan.json").as_posix()
    'results/default/plan.json'
    """
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts:
        raise EnvironmentProblem(f"a worker names the file {relative!r}, which is not in the results folder")
    return root / path


def moved(args: tuple[Any, ...], old: Path, new: Path) -> tuple[Any, ...]:
    """The arguments with every path under `old` turned into the same one under `new`.

    >>> moved((1, Path("a/b")), Path("a"), Path("c")) == (1, Path("c/b"))
    True
    """
    return tuple(
        new / arg.relative_to(old) if isinstance(arg, Path) and arg.is_relative_to(old) else arg for arg in args
    )


class Courier:
    """In a process that does not see the results folder: fetches, lets a job work in `root`, and sends."""

    def __init__(self, home: Home, shelf: RemoteShelf) -> None:
        self._home, self._shelf = home, shelf
        self._may_build = False
        base = Path(tempfile.gettempdir())
        _delete_abandoned(base)
        folder = base / f"harness-{home.token}"
        folder.mkdir(mode=0o700, exist_ok=True)
        self._lock = _share(folder / "lock")
        self.root = folder / str(os.getpid())
        self.root.mkdir()
        for name in SHARED:
            (folder / name).mkdir(exist_ok=True)
            (self.root / name).symlink_to(folder / name)

    def copy(self, folder: Path, scratch: Path) -> bool:
        """See harness.run_dir.look_elsewhere. A warm start is made by the job for it only: trials must share it."""
        relative = folder.relative_to(self.root).as_posix()
        if self._fetch(relative, scratch):
            return True
        if relative.startswith("warm_starts/") and not self._may_build:
            raise RuntimeError(f"{relative} is not in the results folder: it could not be made before the trials")
        return False

    def execute(self, job: Job) -> Iterator[Event | Piece]:
        """Run the job here; before each of its events come the files that it has written by then."""
        self._may_build = "warm_starts" in job.adds
        try:
            for relative in job.owns:
                shutil.rmtree(self.root / relative, ignore_errors=True)
                self._fetch(relative, self.root / relative)
            for relative in job.reads:
                folder, _, name = relative.rpartition("/")
                self._fetch(folder, self.root / folder, only=name)
        except MemberDied as death:
            yield Died(job.key, str(death))
            return
        sent = {path: _State.of(path) for relative in job.owns for path in _files(self.root / relative)}
        built = self._children(job)
        for event in execute(replace(job, args=moved(job.args, self._home.results, self.root))):
            yield from self._news(job, sent)
            if isinstance(event, Finished | Failed):
                for child in sorted(self._children(job) - built):
                    for path in _files(child):
                        yield from self._pieces(job, path, 0)
            yield event
        for relative in job.owns:
            shutil.rmtree(self.root / relative, ignore_errors=True)
        for relative in job.reads:
            (self.root / relative).unlink(missing_ok=True)

    def _fetch(self, relative: str, to: Path, only: str | None = None) -> bool:
        """Copy a folder of the results folder to `to`, or one file of it; False where it has none."""
        found = self._shelf.files(relative)
        files = {name: size for name, size in found.items() if only in (None, name)}
        for name, size in files.items():
            path = inside(to, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                while file.tell() < size and (content := self._shelf.read(f"{relative}/{name}", file.tell())):
                    file.write(content)
            if _grows(path):
                _cut_partial_line(path)
        return bool(files)

    def _children(self, job: Job) -> set[Path]:
        """The folders in those that the job adds to."""
        parents = [self.root / relative for relative in job.adds]
        return {child for parent in parents for child in parent.glob("[!.]*") if child.is_dir()}

    def _news(self, job: Job, sent: dict[Path, _State]) -> Iterator[Piece]:
        """What the job changed since the last time: what grows first, outcome.json last."""
        for path in [path for path in sent if not path.exists()]:
            del sent[path]
            yield Piece(job.key, self._relative(path), -1, b"", True)
        files = [path for relative in job.owns for path in _files(self.root / relative)]
        for path in sorted(files, key=_order):
            before, now = sent.get(path), _State.of(path)
            if now != before:
                yield from self._pieces(job, path, before.size if before and _grows(path) else 0)
                sent[path] = now

    def _pieces(self, job: Job, path: Path, start: int) -> Iterator[Piece]:
        with open(path, "rb") as file:
            file.seek(start)
            while True:
                offset, content = file.tell(), file.read(PIECE_BYTES)
                last = len(content) < PIECE_BYTES
                yield Piece(job.key, self._relative(path), offset, content, last)
                if last:
                    return

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


@dataclass(frozen=True)
class _State:
    """What tells whether a file has changed."""

    number: int
    size: int
    time_ns: int

    @classmethod
    def of(cls, path: Path) -> _State:
        stat = path.stat()
        return cls(stat.st_ino, stat.st_size, stat.st_mtime_ns)


class Inbox:
    """In the driver: writes the pieces of one job, and holds the folders it owns as a worker would."""

    def __init__(self, results: Path, job: Job) -> None:
        self._results, self._job = results, job
        self._unsynced: set[Path] = set()
        self._added: dict[Path, Path] = {}  # folder -> where it is put together
        self._held = ExitStack()
        for relative in job.owns:
            run = RunDir(inside(results, relative))
            self._held.enter_context(run.lock())
            for part in run.path.rglob("*.tmp"):
                part.unlink(missing_ok=True)

    def take(self, piece: Piece) -> None:
        """Write a piece: of a growing file at its place, of another beside it, which is renamed once complete."""
        path = self._place(PurePosixPath(piece.path))
        path.parent.mkdir(parents=True, exist_ok=True)
        if piece.offset < 0:
            path.unlink(missing_ok=True)
        elif _grows(path):
            _write(path, piece)
            self._unsynced.add(path)
        else:
            part = path.with_name(path.name + ".tmp")
            _write(part, piece)
            if piece.last:
                for grown in self._unsynced:  # a checkpoint builds on its records
                    _sync(grown)
                self._unsynced.clear()
                _sync(part)
                put_file(part, path)

    def _place(self, relative: PurePosixPath) -> Path:
        path = inside(self._results, relative.as_posix())
        if any(relative.is_relative_to(folder) for folder in self._job.owns):
            return path
        for parent in self._job.adds:
            if relative.is_relative_to(parent) and len(relative.relative_to(parent).parts) > 1:
                folder = self._results / parent / relative.relative_to(parent).parts[0]
                if folder not in self._added:
                    folder.parent.mkdir(parents=True, exist_ok=True)
                    self._added[folder] = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
                return self._added[folder] / path.relative_to(folder)
        raise EnvironmentProblem(f"{self._job.key}: its worker sends {str(relative)!r}, which is none of its files")

    def close(self, ended: bool) -> None:
        """The job is over. What it added counts only where it came to its end."""
        for folder, scratch in self._added.items():
            if ended:
                put_folder(scratch, folder)
            shutil.rmtree(scratch, ignore_errors=True)
        self._held.close()


def _files(folder: Path) -> list[Path]:
    """Every file under the folder but locks and unfinished ones."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in found if path.name != "lock" and path.suffix != ".tmp"]


def _grows(path: Path) -> bool:
    """Whether the file is only ever appended to."""
    return path.name in ("metrics.jsonl", "trial.log", "error.log") or path.name.startswith("events.out.tfevents.")


def _cut_partial_line(path: Path) -> None:
    """Leave whole lines, to whose end the next are sent."""
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def _order(path: Path) -> tuple[int, str]:
    return (0 if _grows(path) else 2 if path.name == "outcome.json" else 1), str(path)


def _write(path: Path, piece: Piece) -> None:
    with open(path, "r+b" if piece.offset else "wb") as file:
        file.truncate(piece.offset)
        file.seek(piece.offset)
        file.write(piece.content)


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _share(path: Path) -> int:
    """Hold the lock file with others until this process ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _delete_abandoned(base: Path) -> None:
    """Delete the folders of earlier calls, whose processes are gone."""
    for lock in base.glob("harness-*/lock"):
        with suppress(OSError), open(lock, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
