"""Meter logs: complete ones, damaged ones, and ones that name foreign files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from torchyard.builds.meter.compile_costs import MeterLog, read_meter_log, remove_unfinished

END: dict[str, Any] = {
    "event": "end",
    "id": "1",
    "kind": "compile",
    "output": "/x/a.o",
    "language": "c",
    "source": "a.c",
    "tool": "cc",
    "start": 10.0,
    "end": 12.0,
    "wall_s": 2.0,
    "user_s": 1.5,
    "system_s": 0.25,
    "rss_kib": 2048,
    "waited_s": 0.5,
    "expected_mib": 100,
    "units": 2,
    "attempt": 1,
    "out_of_memory": False,
    "retried": False,
    "status": 0,
    "signal": 0,
}


def begin(output: str, id_: str = "1") -> dict[str, Any]:
    return {"event": "begin", "id": id_, "kind": "compile", "output": output, "start": 10.0}


def end(output: str, id_: str = "1", **more: object) -> dict[str, Any]:
    return {**END, "output": output, "id": id_, **more}


def read(path: Path, *records: object) -> MeterLog:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return read_meter_log(path)


def test_a_log_that_is_missing_is_empty(tmp_path: Path) -> None:
    log = read_meter_log(tmp_path / "none")
    assert log == MeterLog()
    assert (log.cpu_s, log.peak_mib, log.busy_s) == (0, 0, 0)


def test_sums_and_orders(tmp_path: Path) -> None:
    log = read(
        tmp_path / "log",
        begin("/x/a.o"),
        end("/x/a.o"),
        begin("/x/b.o", "2"),
        end("/x/b.o", "2", user_s=9.0, rss_kib=1024, start=11.0, end=13.0),
        begin("/x/c.o", "3"),
        end("/x/c.o", "3", user_s=0.1, rss_kib=10 * 1024, start=13.0, end=14.0, waited_s=2.0),
    )
    assert log.cpu_s == 1.5 + 9.0 + 0.1 + 3 * 0.25
    assert log.peak_mib == 10.0
    assert log.unfinished == ()
    assert [one.name for one in log.since(11.0).compiles] == ["b.o", "c.o"]


def test_what_is_there_was_made_by_the_last_that_succeeded(tmp_path: Path) -> None:
    kept, gone = str(tmp_path / "kept.o"), str(tmp_path / "gone.o")
    Path(kept).touch()
    log = read(
        tmp_path / "log",
        end(kept, user_s=9.0),
        end(gone),
        end(kept, user_s=1.0),
        end(kept, user_s=5.0, status=1),
    )
    (made,) = log.made().compiles
    assert (made.output, made.cpu_s) == (kept, 1.25)


def test_time_at_once_counts_once(tmp_path: Path) -> None:
    log = read(
        tmp_path / "log",
        end("/a.o", start=10.0, end=20.0),
        end("/b.o", start=12.0, end=15.0),
        end("/c.o", start=18.0, end=23.0),
        end("/d.o", start=100.0, end=101.0),
    )
    assert log.busy_s == 14.0
    assert MeterLog().busy_s == 0.0


def test_what_is_unfinished(tmp_path: Path) -> None:
    log = read(
        tmp_path / "log",
        begin("/x/cut.o", "1"),
        begin("/x/failed.o", "2"),
        end("/x/failed.o", "2", status=1),
        begin("/x/signalled.o", "3"),
        end("/x/signalled.o", "3", status=-1, signal=15),
        begin("/x/fixed.o", "4"),
        begin("/x/fixed.o", "5"),
        end("/x/fixed.o", "5"),
        begin("/x/failed-then-good.o", "6"),
        end("/x/failed-then-good.o", "6", status=1),
        begin("/x/failed-then-good.o", "7"),
        end("/x/failed-then-good.o", "7"),
        begin("/x/good-then-cut.o", "8"),
        end("/x/good-then-cut.o", "8"),
        begin("/x/good-then-cut.o", "9"),
    )
    assert set(log.unfinished) == {
        "/x/cut.o",
        "/x/failed.o",
        "/x/signalled.o",
        "/x/good-then-cut.o",
    }


def test_damaged_lines_are_counted_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = json.dumps(end("/x/a.o"))
    path.write_bytes(
        b"\0\0\0\n"
        + whole.encode()
        + b"\n"
        + whole[:40].encode()
        + b"\n[]\n{}\n"
        + b'{"event":"end","id":"1","output":"/x"}\n\xff\xfe\n'
        + whole[:60].encode()
    )
    log = read_meter_log(path)
    assert len(log.compiles) == 1
    assert log.damaged_lines == 7


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(tmp_path_factory: Any, noise: bytes) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(noise)
    assert read_meter_log(path).compiles == ()


def test_only_regular_files_of_ours_are_removed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "build", tmp_path / "elsewhere"
    inside.mkdir()
    outside.mkdir()
    for path in (inside / "half.o", outside / "theirs.o", outside / "target.o"):
        path.write_text("half")
    (inside / "link.o").symlink_to(outside / "target.o")
    (inside / "folder.o").mkdir()
    (inside / "way").symlink_to(outside)
    os.mkfifo(inside / "pipe.o")
    outputs = (
        f"{inside}/half.o",
        f"{inside}/gone.o",
        f"{inside}/link.o",
        f"{inside}/folder.o",
        f"{inside}/pipe.o",
        f"{inside}/../elsewhere/theirs.o",
        f"{inside}/way/theirs.o",
        "/dev/null",
        f"{inside}/nul\0.o",
    )
    removed = remove_unfinished(MeterLog(unfinished=outputs), below=inside)
    assert removed == (inside / "half.o",)
    assert (outside / "theirs.o").exists()
    assert (outside / "target.o").exists()
    assert Path("/dev/null").is_char_device()
    assert remove_unfinished(MeterLog(unfinished=("/dev/null",))) == ()
    assert Path("/dev/null").is_char_device()
