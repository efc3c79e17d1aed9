"""A small disk that becomes full or read-only at a test's word. The kernel itself refuses what is written there.

It is mounted for the processes started on it alone, in a namespace of their own, which needs no permission where the
kernel lets users have namespaces.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


def can_mount() -> bool:
    """Whether this machine has the tools and lets us."""
    try:
        return not subprocess.run([*_UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode
    except FileNotFoundError:
        return False


class SmallDisk:
    """A context manager: while entered, a disk is mounted at `folder` for those that `start` starts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        script = f"mount -t tmpfs -o size=16m none '{folder}' && echo mounted && exec sleep infinity"
        self._holder = subprocess.Popen([*_UNSHARE, "sh", "-c", script], stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None and self._holder.stdout.readline() == "mounted\n"
        self.seen = Path(f"/proc/{self._holder.pid}/root{folder}")  # where other processes see what is there

    def start(self, command: list[str], **settings: Any) -> subprocess.Popen[str]:
        """A process for which the disk is there."""
        inside = ["nsenter", f"--target={self._holder.pid}", "--user", "--mount", "--preserve-credentials"]
        output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([*inside, f"--wd={Path.cwd()}", *command], **output, **settings)

    def fill(self) -> None:
        """Leave no room."""
        self._run(["sh", "-c", f"cat /dev/zero > '{self._folder}/filler'"], may_fail=True)

    def make_room(self) -> None:
        (self.seen / "filler").unlink()

    def refuse(self) -> None:
        """What is opened from now on cannot be written; a file system that turns read-only does the same."""
        self._run(["mount", "--bind", str(self._folder), str(self._folder)])
        self._run(["mount", "-o", "remount,bind,ro", str(self._folder)])

    def allow(self) -> None:
        self._run(["umount", "--lazy", str(self._folder)])

    def _run(self, command: list[str], may_fail: bool = False) -> None:
        process = self.start(command)
        output, _ = process.communicate()
        assert may_fail or process.returncode == 0, output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._holder.kill()
        self._holder.communicate()
