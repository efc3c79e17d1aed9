"""How many responses fit in memory at once, from what one piece of work took at its peak and what there is."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
RESET_PEAK = Path("/proc/self/clear_refs"), "5"
# Of a group of processes: the most it may have and what it has, in both versions of the interface.
LIMITS = ("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")


@dataclass(frozen=True)
class Room:
    """The most responses in flight that memory allows, None where it is not known, and where that is from."""

    responses: int | None
    source: str


def room_for(peak_bytes: int, in_flight: int, free_bytes: int, source: str) -> Room:
    """In proportion: work on `in_flight` responses took `peak_bytes` at its peak, and `free_bytes` are to be had.

    >>> room_for(4_000_000, 64, 16_000_000, "memory").responses
    256
    """
    if peak_bytes <= 0:
        return Room(None, f"{source}: {in_flight:,} responses took no more than was there")
    text = f"{source}: {peak_bytes / 1e6:,.3g} MB for {in_flight:,} responses, {free_bytes / 1e9:,.3g} GB free before"
    return Room(free_bytes * in_flight // peak_bytes, text)


class MemoryWatch:
    """From its making on, the peak of what this process takes: of the GPU by torch, else of the machine's memory."""

    def __init__(self) -> None:
        self.on_gpu = torch.cuda.is_available()
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.before_bytes = torch.cuda.memory_allocated()
            cached_bytes = torch.cuda.memory_reserved() - self.before_bytes
            self.free_bytes = torch.cuda.mem_get_info()[0] + cached_bytes
        else:
            self.can_tell = _forget_peak()
            if self.can_tell:
                self.before_bytes = _resident_bytes("VmRSS")
                self.free_bytes = free_memory_bytes()

    def room(self, in_flight: int) -> Room:
        """By the peak since, with so many responses in flight."""
        if self.on_gpu:
            peak_bytes = torch.cuda.max_memory_allocated() - self.before_bytes
            return room_for(peak_bytes, in_flight, self.free_bytes, "GPU memory by torch")
        if not self.can_tell:
            return Room(None, "this system does not tell the peak of a process")
        peak_bytes = _resident_bytes("VmHWM") - self.before_bytes
        return room_for(peak_bytes, in_flight, self.free_bytes, "resident memory of the process")


def _forget_peak() -> bool:
    """Whether this system can."""
    path, word = RESET_PEAK
    try:
        path.write_text(word)
    except OSError:
        return False
    ctypes.CDLL(None).malloc_trim(0)  # memory that earlier work has given back would hide what comes
    return True


def _resident_bytes(field: str) -> int:
    lines = STATUS.read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


def free_memory_bytes(groups: Path = Path("/sys/fs/cgroup"), info: Path = Path("/proc/meminfo")) -> int:
    """What the machine has to give, or what the limit on this group of processes leaves."""
    lines = info.read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    for most, now in LIMITS:
        if (groups / most).exists() and (text := (groups / most).read_text().strip()).isdecimal():
            free = min(free, int(text) - int((groups / now).read_text()))
    return free


def machine_memory_bytes() -> int:
    """All of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def together(rooms: Sequence[Room]) -> Room:
    """The room of engines that each have their own."""
    if len(rooms) == 1:
        return rooms[0]
    known = [room.responses for room in rooms if room.responses is not None]
    responses = sum(known) if len(known) == len(rooms) else None
    return Room(responses, f"{len(rooms)} engines, the first by {rooms[0].source}")
