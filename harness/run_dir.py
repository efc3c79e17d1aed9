"""One trial's directory: atomic writes, checkpoints, the lock, and the marker that says it is done.

    <trial_id>/
      config.json  provenance.json      written when an attempt starts
      metrics.jsonl                     appended by tracking/jsonl.py
      checkpoint/<samples_trained>.pt   the last two, or as many as execution.checkpoints_kept says
      outcome.json                      written last, by rename: done means this file
      trial.log                         one line for each event, with its time
      error.log                         the tracebacks of failed attempts
      lock                              held (flock) by the process that writes here

A file appears whole or not at all: written beside its place, flushed to the disk, renamed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import pickle
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError

from harness.errors import EnvironmentProblem
from harness.secrets import redact
from harness.trial_log import note
from harness.types import TrialOutcome

logger = logging.getLogger(__name__)

# The worker of a node that only the cluster has lost writes until its node notices: after a minute, by Ray's defaults.
LOCK_WAIT_S = 180.0
ASKED_FOR_S = 0.2
_CHECKSUMS = "files.json"
_OUTCOME = TypeAdapter(TrialOutcome)
_DISK_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO}


def is_disk_problem(error: BaseException) -> bool:
    """Whether the file system refused (full, quota, read-only, no permission): no retry of a trial mends that.

    Libraries written in other languages pass the system's words on in errors of their own.

    >>> is_disk_problem(OSError(errno.ENOSPC, "")), is_disk_problem(ValueError("No space left on device (os error 28)"))
    (True, True)
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _DISK_ERRNOS
    return any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))


def disk_problem(error: BaseException) -> EnvironmentProblem:
    """What to tell about it."""
    what = str(error)
    if isinstance(error, OSError) and error.strerror:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return EnvironmentProblem(
        f"{what}; what is written is kept: make room or permission there, or give another --results DIR, "
        f"then run the same command"
    )


# copy(folder, scratch): fill `scratch` with the files that `folder` has elsewhere; False where it has none
Copy = Callable[[Path, Path], bool]
_elsewhere: Copy | None = None


def look_elsewhere(copy: Copy) -> None:
    """From now on build_once of this process asks `copy` before it builds."""
    global _elsewhere
    _elsewhere = copy


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """The folder, filled by `build` where there is none yet or where it is damaged: it appears by rename, whole.

    Its file files.json has the checksums of the others. Two processes that build it at once do the same work; one wins.
    """
    if not is_whole_folder(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            if _elsewhere is None or not _elsewhere(folder, scratch):
                build(scratch)
                write_json(scratch / _CHECKSUMS, _checksums(scratch))
            put_folder(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def put_folder(scratch: Path, folder: Path) -> None:
    """Rename `scratch` to `folder`, unless a whole one stands there by now; a damaged one is deleted."""
    if is_whole_folder(folder):
        return
    damaged = scratch.with_name(scratch.name + "-damaged")
    with suppress(FileNotFoundError):
        os.rename(folder, damaged)
    try:
        os.rename(scratch, folder)
    except OSError:
        if not is_whole_folder(folder):  # else another process was quicker
            raise
    shutil.rmtree(damaged, ignore_errors=True)


def is_whole_folder(folder: Path) -> bool:
    """Whether every file that build_once left there is as it was."""
    sums, found = read_json(folder / _CHECKSUMS), _checksums(folder)
    return sums is not None and all(found.get(name) == checksum for name, checksum in sums.items())


def _checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of each file in the folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != _CHECKSUMS)
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in files}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes the place of `path` once it is complete and on the disk, or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        put_file(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and not error.filename:
            error.filename = str(path)
        raise


def put_file(temporary: Path, path: Path) -> None:
    """Rename the file, and wait until that is on the disk too."""
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut
    finally:
        os.close(folder)


def write_json(path: Path, content: Any) -> None:
    """Write `content` to `path` as JSON, atomically."""
    text = json.dumps(content, indent=2, allow_nan=False)
    with replacing(path) as file:
        file.write(text.encode() + b"\n")


@contextmanager
def exclusive(path: Path, wait_s: float, problem: str) -> Iterator[None]:
    """Hold the lock file `path`; EnvironmentProblem(problem) when another process still has it after `wait_s`.

    The kernel frees the lock when its process dies, however it dies. One that is_held asks for is free in a moment.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + max(wait_s, ASKED_FOR_S)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise EnvironmentProblem(problem) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock file `path`. Leaves it as it is; asks by a shared lock, given back."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class RunDir:
    """The directory of one trial. Made when first written to."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoint_dir(self) -> Path:
        return self.path / "checkpoint"

    def start(self, config: dict[str, Any], provenance: dict[str, Any]) -> None:
        """Begin an attempt: the configuration and where it runs.

        An earlier outcome (failed, interrupted) is taken away, since the trial is running again. The
        provenance of earlier attempts is kept under "earlier" where it differs from this one.
        """
        self.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        (self.path / "outcome.json").unlink(missing_ok=True)
        write_json(self.path / "config.json", config)
        previous = read_json(self.path / "provenance.json") or {}
        earlier = previous.pop("earlier", [])
        if previous and previous != json.loads(json.dumps(provenance)):
            earlier = [*earlier, previous]
        write_json(self.path / "provenance.json", {**provenance, "earlier": earlier} if earlier else provenance)

    @contextmanager
    def lock(self, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
        """Be the only writer: an orphaned worker and a new one must never write one trial together."""
        self.path.mkdir(parents=True, exist_ok=True)
        problem = f"{self.path} is being written by another process; wait for it to end or stop it, then run again"
        with exclusive(self.path / "lock", wait_s, problem):
            yield

    def outcome(self) -> TrialOutcome | None:
        """How the trial ended; None while it has not (or while outcome.json cannot be read)."""
        try:
            return _OUTCOME.validate_python(read_json(self.path / "outcome.json"))
        except ValidationError:
            return None

    def write_outcome(self, outcome: TrialOutcome) -> None:
        """Mark the end of the trial: the last thing written here."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "outcome.json", asdict(replace(outcome, reason=redact(outcome.reason))))

    def append_error(self, text: str) -> None:
        """Keep the traceback of a failed attempt; its first and last line go to the trial's log."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / "error.log", "a", encoding="utf-8", errors="replace") as file:
            file.write(redact(text).rstrip("\n") + "\n\n")
        lines = text.strip().splitlines()
        note(self.path, ": ".join(dict.fromkeys([lines[0], lines[-1]])))

    def save_checkpoint(self, state: dict[str, Any], samples_trained: int, kept: int = 2) -> None:
        """Write the state after `samples_trained` samples; the last `kept` stay, the one before as a reserve.

        Checkpoints beyond `samples_trained` are of a future this attempt did not see (it fell back to an
        earlier one): they go too.
        """
        import torch

        self.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        new = self.checkpoint_path(samples_trained)
        try:
            with replacing(new) as file:
                torch.save(state, file)
        except RuntimeError as error:
            cause = error.__context__
            if isinstance(cause, OSError):  # torch hides a full disk in an error of its own
                raise OSError(cause.errno, cause.strerror, str(new)) from None
            raise
        older = [path for path in self._checkpoints() if path.name < new.name]
        for path in {*self._checkpoints()} - {new, *older[: kept - 1]}:
            path.unlink(missing_ok=True)
        for leftover in self.checkpoint_dir.glob("*.tmp"):
            leftover.unlink(missing_ok=True)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The newest checkpoint that is whole, or None. A damaged one is passed over, not deleted.

        So is one that holds more than numbers and names: loading it never runs code.
        """
        for path in self._checkpoints():
            state = _load(path)
            if state is not None:
                return state
            logger.warning("%s is damaged or no checkpoint: it is passed over", path)
        return None

    def read_checkpoint(self, samples_trained: int) -> dict[str, Any] | None:
        """The checkpoint written after so many samples, None where there is no whole one; as load_checkpoint reads."""
        return _load(self.checkpoint_path(samples_trained))

    def checkpoint_path(self, samples_trained: int) -> Path:
        return self.checkpoint_dir / f"{samples_trained:012d}.pt"

    def checkpoints_at(self) -> list[int]:
        """Samples trained on at each checkpoint that is there, ascending."""
        return sorted(int(path.stem) for path in self._checkpoints() if path.stem.isdecimal())

    def _checkpoints(self) -> list[Path]:
        """Newest first."""
        return sorted(self.checkpoint_dir.glob("*.pt"), reverse=True)


def _load(path: Path) -> dict[str, Any] | None:
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True) if _is_whole(path) else None
    except (pickle.UnpicklingError, RuntimeError):
        state = None
    return state if isinstance(state, dict) else None


def _is_whole(path: Path) -> bool:
    """Whether the checkpoint's zip archive matches its checksums, which torch.load itself does not compare."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (FileNotFoundError, zipfile.BadZipFile, EOFError, NotImplementedError, OverflowError):
        return False


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file; None where there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None
