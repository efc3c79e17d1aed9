"""How many responses fit in memory: arithmetic on made-up files, and the real peak of this process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.memory import MemoryWatch, Room, free_memory_bytes, room_for, together


def test_room_is_in_proportion_to_what_the_work_took() -> None:
    # 64 responses took 4 MB, so 16 MB hold 256.
    room = room_for(4_000_000, 64, 16_000_000, "GPU memory by torch")
    assert room == Room(256, "GPU memory by torch: 4 MB for 64 responses, 0.016 GB free before")
    nothing = room_for(0, 4, 10**9, "resident memory")
    assert nothing.responses is None and nothing.source.endswith("4 responses took no more than was there")
    assert together([room, Room(100, "")]).responses == 356
    assert together([room, nothing]).responses is None
    assert together([room]) is room


def test_a_limit_on_the_group_of_processes_counts_before_the_machines_memory(tmp_path: Path) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal: 2000 kB\nMemAvailable: 1000 kB\n")
    assert free_memory_bytes(tmp_path, info) == 1000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory_bytes(tmp_path, info) == 1000 * 1024
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "memory.current").write_text("200000\n")
    assert free_memory_bytes(tmp_path, info) == 300_000
    (tmp_path / "memory").mkdir()  # the older interface
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("250000\n")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("50000\n")
    assert free_memory_bytes(tmp_path, info) == 200_000


def test_the_peak_is_that_of_the_work_and_not_of_what_came_before() -> None:
    large = torch.ones(100_000_000)  # 400 MB
    del large
    watch = MemoryWatch()
    if not watch.on_gpu and not watch.can_tell:
        pytest.skip("this system does not tell the peak of a process")
    held = torch.ones(25_000_000, device="cuda" if watch.on_gpu else "cpu")  # 100 MB for 10 responses
    del held
    room = watch.room(10)
    assert room.responses == pytest.approx(watch.free_bytes * 10 / 100e6, rel=0.1)
