"""The progress file of a run: bounded, and readable while it grows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchyard.results.directory import PROGRESS_FILE
from torchyard.results.run_writer import LARGEST_BYTES, ProgressFile, ProgressTail


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_reader_sees_each_line_once_and_in_order(tmp_path: Path) -> None:
    file, tail = ProgressFile(tmp_path), ProgressTail(tmp_path)
    assert tail.more() == []
    file.add({"n": 1}, passing=False)
    file.add({"n": 2}, passing=False)
    assert tail.more() == [{"n": 1}, {"n": 2}]
    assert tail.more() == []
    file.add({"n": 3}, passing=False)
    assert tail.more() == [{"n": 3}]
    assert ProgressTail(tmp_path).more() == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / PROGRESS_FILE
    path.write_bytes(b'{"n": 1}\n{"n"')
    tail = ProgressTail(tmp_path)
    assert tail.more() == [{"n": 1}]
    with path.open("ab") as file:
        file.write(b": 2}\n")
    assert tail.more() == [{"n": 2}]


def test_what_is_no_record_is_left_out(tmp_path: Path) -> None:
    deep = b"[" * 100_000
    (tmp_path / PROGRESS_FILE).write_bytes(b'7\nnull\n\xff\xfe\n{"n": 1}\n' + deep + b"\n")
    assert ProgressTail(tmp_path).more() == [{"n": 1}]


def test_passing_events_are_thinned_out_and_others_are_not(tmp_path: Path) -> None:
    clock = Clock()
    file = ProgressFile(tmp_path, now_s=clock)
    for number in range(100):
        clock.now_s += 0.01
        file.add({"n": number}, passing=True)
    file.add({"n": "kept"}, passing=False)
    found = [record["n"] for record in ProgressTail(tmp_path).more()]
    assert found == [0, 50, "kept"]


def test_the_longer_the_file_the_longer_the_pause(tmp_path: Path) -> None:
    clock = Clock()
    file = ProgressFile(tmp_path, now_s=clock)
    for _ in range(24 * 3600 * 4):
        clock.now_s += 0.25
        file.add({"text": "x" * 180}, passing=True)
    size_bytes = (tmp_path / PROGRESS_FILE).stat().st_size
    assert 512 << 10 < size_bytes < 1200 << 10


def test_it_ends_at_its_largest_size_with_a_whole_line(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path)
    for _ in range(3000):
        file.add({"text": "x" * 1000}, passing=False)
    data = (tmp_path / PROGRESS_FILE).read_bytes()
    assert LARGEST_BYTES - 1100 < len(data) <= LARGEST_BYTES
    assert json.loads(data.splitlines()[-1])
    tail = ProgressTail(tmp_path)
    assert sum(len(tail.more()) for _ in range(20)) == data.count(b"\n")


def test_a_huge_file_of_somebody_else_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / PROGRESS_FILE).open("wb") as file:
        file.truncate(1 << 33)
    tail = ProgressTail(tmp_path)
    assert all(tail.more() == [] for _ in range(20))


def test_an_unwritable_folder_is_harmless(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path / "missing")
    file.add({"n": 1}, passing=False)
    file.close()
    file.close()


def test_a_full_disk_ends_the_file_and_not_the_run() -> None:
    # /dev/full refuses every write as a full disk does.
    import os

    from torchyard.files.safe_writing import RecordFile

    file = ProgressFile(Path("/proc/self/no-such-folder"))
    record_file = RecordFile.__new__(RecordFile)
    record_file.path = Path("/dev/full")
    record_file._descriptor = os.open("/dev/full", os.O_WRONLY)
    record_file._size_bytes = 0
    record_file.records = 0
    file._file = record_file
    file.add({"n": 1}, passing=False)
    assert file._file is None


@pytest.mark.parametrize("passing", [True, False])
def test_closed_means_closed(tmp_path: Path, passing: bool) -> None:
    file = ProgressFile(tmp_path)
    file.close()
    file.add({"n": 1}, passing=passing)
    assert (tmp_path / PROGRESS_FILE).read_bytes() == b""
