"""The record of truth keeps whole lines only, whatever happens to the process or the disk."""

import errno
import json
import os
from pathlib import Path

import pytest

from harness.tracking.jsonl import JsonlSink, read_records
from harness.types import StepRecord


def record(samples: int, value: float = 0.5) -> StepRecord:
    return StepRecord(
        kind="train",
        samples_trained=samples,
        samples_generated=samples + 8,
        optimizer_steps=samples // 64,
        wall_s=1.5,
        metrics={"reward/mean": value},
        extra={"step": samples // 64, "seconds": {"generate": 0.25}},
    )


def test_a_record_is_one_flat_json_line_that_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.write(record(64))
    assert json.loads(path.read_text()) == {
        "kind": "train",
        "samples_trained": 64,
        "samples_generated": 72,
        "optimizer_steps": 1,
        "wall_s": 1.5,
        "metrics": {"reward/mean": 0.5},
        "step": 1,
        "seconds": {"generate": 0.25},
    }
    sink.close(None)
    sink.close(None)  # closing twice is harmless


@pytest.mark.parametrize("tail", [b'{"kind": "tr', b"\0" * 70_000, b"x" * 200_000])
def test_a_partial_last_line_is_cut_before_appending(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.write(record(64))
    sink.close(None)
    with open(path, "ab") as file:
        file.write(tail)
    sink = JsonlSink(path)
    sink.write(record(128))
    sink.close(None)
    records, num_bad = read_records(path)
    assert [r["samples_trained"] for r in records] == [64, 128] and num_bad == 0


def test_a_file_that_is_one_partial_line_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind"')
    JsonlSink(path).close(None)
    assert path.read_bytes() == b""


def test_a_full_disk_raises_and_leaves_the_earlier_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.write(record(64))
    whole = path.read_bytes()
    real_write = os.write

    def refuse(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def half(descriptor: int, data: bytes) -> int:
        return real_write(descriptor, data[: len(data) // 2])

    for broken in (refuse, half):
        monkeypatch.setattr(os, "write", broken)
        with pytest.raises(OSError) as caught:
            sink.write(record(128))
        assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(path)
        assert path.read_bytes() == whole
    monkeypatch.undo()
    sink.write(record(128))  # room again: the file goes on with a whole line
    assert [r["samples_trained"] for r in read_records(path)[0]] == [64, 128]


def test_a_value_that_is_not_a_number_is_refused_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    with pytest.raises(ValueError):
        sink.write(record(64, float("nan")))
    assert path.read_bytes() == b""


def test_reading_counts_what_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        b'{"kind": "eval", "samples_trained": 1}\n{"samples_tr\n7\n\xff\xfe\n{"kind": "eval", "samples_trained": 2}\n{"kin'
    )
    records, num_bad = read_records(path)
    assert [r["samples_trained"] for r in records] == [1, 2] and num_bad == 4
    assert read_records(tmp_path / "none.jsonl") == ([], 0)


def test_valid_lines_of_another_shape_are_no_records_and_what_is_no_number_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    no_records = [
        {},
        {"kind": "train"},
        {"kind": ["train"], "samples_trained": 64},
        {"kind": "other", "samples_trained": 64},
        *({"kind": "eval", "samples_trained": n} for n in ("64", 64.0, True, None, [64], {"a": 1}, -1, 10**400)),
    ]
    odd = {
        "kind": "eval",
        "samples_trained": 64,
        "wall_s": "long",
        "step": [1],
        "optimizer_steps": 3,
        "metrics": {"eval/score": "0.5", "eval/score_se": None, "eval/greedy_score": 0.25, "x": 10**400, "y": True},
        "seconds": {"eval": [], "other": 1},
    }
    lines = [*map(json.dumps, [*no_records, odd, {"kind": "eval", "samples_trained": 128, "metrics": [1]}])]
    lines += ['{"kind": "eval", "samples_trained": 192, "metrics": {"eval/score": NaN}}', "[" * 100_000]
    path.write_text("\n".join(lines) + "\n")
    records, num_bad = read_records(path)
    assert records == [
        {
            "kind": "eval",
            "samples_trained": 64,
            "optimizer_steps": 3,
            "metrics": {"eval/greedy_score": 0.25},
            "seconds": {"other": 1},
        },
        {"kind": "eval", "samples_trained": 128, "metrics": {}},
        {"kind": "eval", "samples_trained": 192, "metrics": {}},
    ]
    assert num_bad == len(no_records) + 1
