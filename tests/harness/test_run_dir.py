"""A trial's directory survives kills, damaged files and full disks."""

import errno
import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch

from harness.errors import EnvironmentProblem
from harness.run_dir import RunDir, build_once, is_disk_problem, replacing, write_json
from harness.types import TrialOutcome

OUTCOME = TrialOutcome("completed", "", 128, 128, 2, 3.5, 1)


def state(samples: int) -> dict:
    return {"samples_trained": samples, "weight": torch.full((1000,), float(samples)), "rng": torch.get_rng_state()}


def test_done_means_an_outcome_file_that_reads_back(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "trial")
    assert run.outcome() is None
    run.start({"seed": 1}, {"commit": "abc"})
    assert json.loads((run.path / "config.json").read_text()) == {"seed": 1}
    assert json.loads((run.path / "provenance.json").read_text()) == {"commit": "abc"}
    run.write_outcome(OUTCOME)
    assert run.outcome() == OUTCOME


def test_an_unreadable_outcome_is_no_outcome(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for text in ("", "{", "[]", '{"status": "completed"}'):
        (tmp_path / "outcome.json").write_text(text)
        assert run.outcome() is None


def test_starting_again_drops_the_old_outcome_and_keeps_a_differing_provenance(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "trial")
    run.start({}, {"commit": "abc"})
    run.start({}, {"commit": "abc"})
    run.write_outcome(TrialOutcome("failed", "boom", 0, 0, 0, 0.0, 3))
    run.start({}, {"commit": "def"})
    assert run.outcome() is None
    assert json.loads((run.path / "provenance.json").read_text()) == {"commit": "def", "earlier": [{"commit": "abc"}]}


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_json(path, {"format": 1})
    with pytest.raises(OSError) as caught, replacing(path) as file:
        file.write(b"half of the new")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(path)
    assert json.loads(path.read_text()) == {"format": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_the_last_two_checkpoints_are_kept_and_the_newest_is_loaded(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.load_checkpoint() is None
    for samples in (64, 1024, 20_000):
        run.save_checkpoint(state(samples), samples)
    assert sorted(p.name for p in run.checkpoint_dir.iterdir()) == ["000000001024.pt", "000000020000.pt"]
    loaded = run.load_checkpoint()
    assert loaded is not None and loaded["samples_trained"] == 20_000
    assert torch.equal(loaded["weight"], torch.full((1000,), 20_000.0))


@pytest.mark.parametrize("damage", ["empty", "half", "one bit", "zeros"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    run = RunDir(tmp_path)
    run.save_checkpoint(state(64), 64)
    run.save_checkpoint(state(128), 128)
    newest = run.checkpoint_dir / "000000000128.pt"
    whole = newest.read_bytes()
    middle = len(whole) // 2
    newest.write_bytes(
        {
            "empty": b"",
            "half": whole[:middle],
            "one bit": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "zeros": b"\0" * len(whole),
        }[damage]
    )
    loaded = run.load_checkpoint()
    assert loaded is not None and loaded["samples_trained"] == 64
    run.save_checkpoint(state(96), 96)  # the attempt that fell back: its own checkpoints count from now on
    assert sorted(p.name for p in run.checkpoint_dir.iterdir()) == ["000000000064.pt", "000000000096.pt"]


def _limited_save(folder: str) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    try:
        RunDir(folder).save_checkpoint({"weight": torch.zeros(100_000)}, 128)
    except OSError as error:
        os._exit(7 if is_disk_problem(error) and str(error.filename).endswith("000000000128.pt") else 8)
    os._exit(9)


def test_a_checkpoint_that_does_not_fit_is_a_disk_problem_and_the_old_one_stays(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.save_checkpoint(state(64), 64)
    process = multiprocessing.get_context("fork").Process(target=_limited_save, args=(str(tmp_path),))
    process.start()
    process.join()
    assert process.exitcode == 7
    assert [p.name for p in run.checkpoint_dir.iterdir()] == ["000000000064.pt"]


def _hold(folder: str, ready: "multiprocessing.synchronize.Event") -> None:
    with RunDir(folder).lock():
        ready.set()
        signal.pause()


def test_two_processes_never_write_one_trial_and_a_kill_frees_the_lock(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(str(tmp_path), ready))
    holder.start()
    assert ready.wait(10)
    with pytest.raises(EnvironmentProblem, match="written by another process"), RunDir(tmp_path).lock(wait_s=0.1):
        pass
    holder.kill()
    holder.join()
    with RunDir(tmp_path).lock(wait_s=5.0):
        pass


def test_disk_problems_are_told_from_other_errors() -> None:
    assert is_disk_problem(OSError(errno.EROFS, "Read-only file system"))
    assert is_disk_problem(PermissionError(errno.EACCES, "Permission denied"))
    assert not is_disk_problem(FileNotFoundError(errno.ENOENT, "No such file"))
    assert not is_disk_problem(ValueError("no"))


def _build(folder: Path) -> None:
    (folder / "weights").mkdir()
    (folder / "weights" / "model.bin").write_bytes(b"0123456789")
    (folder / "config.json").write_text("{}")


@pytest.mark.parametrize("damage", ["half", "one bit", "missing", "no checksums"])
def test_a_damaged_shared_folder_is_built_anew(tmp_path: Path, damage: str) -> None:
    folder = build_once(tmp_path / "warm_starts" / "abc", _build)
    weights = folder / "weights" / "model.bin"
    if damage == "missing":
        weights.unlink()
    elif damage == "no checksums":
        (folder / "files.json").unlink()
    else:
        weights.write_bytes(b"01234" if damage == "half" else b"0123456788")
    assert build_once(folder, _build) == folder
    assert weights.read_bytes() == b"0123456789"
    assert [path.name for path in folder.parent.iterdir()] == ["abc"]


def test_a_whole_shared_folder_is_not_built_again(tmp_path: Path) -> None:
    folder = build_once(tmp_path / "abc", _build)
    assert build_once(folder, lambda scratch: pytest.fail("built again")) == folder
