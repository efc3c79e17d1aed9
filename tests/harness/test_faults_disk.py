"""A disk that is full or read-only while a sweep runs ends it with a sentence; with room again it goes on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.harness.conftest import LIMIT_S
from tests.harness.disks import SmallDisk, can_mount
from tests.harness.faults import all_undisturbed, set_faults, small_plan, trial_folder, wait_until

EXIT_ENVIRONMENT = 3
pytestmark = pytest.mark.slow


@pytest.mark.skipif(not can_mount(), reason="no namespace to mount a disk in")
@pytest.mark.parametrize("trouble", ["No space left on device", "Read-only file system"])
def test_a_disk_that_refuses_loses_nothing(tmp_path: Path, trouble: str) -> None:
    plan = small_plan([8], seeds=3, execution={"checkpoint_every_samples": 128, "workers": 2})
    set_faults(tmp_path, {"*": {"pause_s": 0.3}})
    with SmallDisk(tmp_path / "disk") as disk:
        command = [sys.executable, "-m", "tests.harness.fault_driver", str(tmp_path / "disk"), "3"]
        settings = {"env": os.environ | {"FAULTS": str(tmp_path / "faults.json"), "RAY_ADDRESS": "local"}}
        metrics = [trial_folder(disk.seen, trial) / "metrics.jsonl" for trial in plan.trials]

        process = disk.start(command, **settings)
        wait_until(
            lambda: any(path.exists() and path.read_bytes().count(b"\n") > 2 for path in metrics), process=process
        )
        is_full = trouble.startswith("No space")
        (disk.fill if is_full else disk.refuse)()
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == EXIT_ENVIRONMENT, output
        assert f"{trouble}; what is written is kept: make room or permission there" in output
        assert "Traceback" not in output and not all_undisturbed(disk.seen, plan)
        before = [path.read_bytes() if path.exists() else b"" for path in metrics]

        (disk.make_room if is_full else disk.allow)()
        process = disk.start(command, **settings)
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, output
        assert "3 completed" in output and all_undisturbed(disk.seen, plan)
        after = [path.read_bytes() for path in metrics]
        assert all(new.startswith(old) for old, new in zip(before, after, strict=True))
