"""Progress from real and unusual output, and the remaining time."""

from __future__ import annotations

import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.builds.meter.compile_costs import CurvePoint, StepRun
from torchyard.builds.running.compile_progress import Progress, ProgressReader, RemainingTime


def read(*pieces: bytes) -> ProgressReader:
    reader = ProgressReader()
    for piece in pieces:
        reader.feed(piece)
    reader.finish()
    return reader


def progress(*pieces: bytes) -> tuple[int, int | None] | None:
    found = read(*pieces).progress
    return None if found is None else (found.done, found.total)


def test_no_progress_before_the_first_count() -> None:
    assert progress(b"") is None
    assert progress(b"-- Configuring done\nrunning build_ext\n[not/counted]\n[x%]\n") is None


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (b"[12/345] Building CXX object a.o\n", (12, 345)),
        (b"  [12/345] indented by pip\n", (12, 345)),
        (b"[ 12/345] padded\n", (12, 345)),
        (b"[ 12%] Building CXX object a.o\n", (12, 100)),
        (b"[100%] Built target x\n", (100, 100)),
        (b"[1/9] a\r[2/9] b\r\x1b[K[3/9] c\r", (3, 9)),
        (b"\x1b[32m[ 40%] \x1b[0mBuilding\r\n", (40, 100)),
        (b"\x1b]0;title\x07[7/8] x\n", (7, 8)),
        (b"[5/4] no such thing\n", None),
        (b"[3/0] no such thing\n", None),
        (b"[500%] no such thing\n", None),
        (b"see [12/345] inside a line\n", None),
        (b"gcc -O2 -c a.c -o a.o\ncc   -c -o b.o b.c\n", (2, None)),
        (b"x86_64-linux-gnu-g++ -fPIC -c x.cpp -o x.o\n/usr/bin/g++-12 -shared x.o\n", (1, None)),
        (b"  CC      foo.o\n  CXX bar.o\n  LD foo\n", (2, None)),
        (b"building 'x' extension\n/opt/cuda/bin/nvcc -O3 -c k.cu -o k.o\n", (1, None)),
        (b"echo gcc -c a.c\nfinding -c things\n", None),
    ],
)
def test_one_line_at_a_time(output: bytes, expected: tuple[int, int | None] | None) -> None:
    assert progress(output) == expected


@given(st.lists(st.integers(0, 80), max_size=10))
def test_pieces_of_any_size_give_the_same(cuts: list[int]) -> None:
    text = b"\x1b[1m[1/40] a\x1b[0m\n[2/40] b\r[3/40] c\r\n[4/39] restat\nnoise\n[5/39] end\n"
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[left:right] for left, right in pairwise(edges)]
    assert progress(*pieces) == (5, 39)


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_no_bytes_break_it(pieces: list[bytes]) -> None:
    found = read(*pieces).progress
    assert found is None or found.total is None or 0 <= found.done <= found.total


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    reader = ProgressReader()
    for _ in range(40):
        reader.feed(b"x" * 50_000)
    assert len(reader._rest) <= 1 << 16
    reader.feed(b"\n[1/2] a\n")
    assert reader.progress == Progress(done=1, total=2)


def test_ninja_shortens_its_total() -> None:
    reader = read(b"[1/50] codegen\n[2/50] a\n[3/31] b\n[4/31] c\n")
    assert reader.progress == Progress(done=4, total=31, build=0)


def test_builds_one_after_another() -> None:
    reader = ProgressReader()
    reader.feed(b"[1/2] a\n[2/2] b\n")
    assert reader.progress == Progress(done=2, total=2, build=0)
    reader.feed(b"-- next project\n[1/300] a\n")
    assert reader.progress == Progress(done=1, total=300, build=1)
    reader.feed(b"[300/300] end\n[1/300] the same again\n")
    assert reader.progress == Progress(done=1, total=300, build=2)


def test_a_build_inside_another() -> None:
    reader = read(b"[10/400] outer\n[1/3] inner\n[2/3] inner\n[3/3] inner\n")
    assert reader.progress == Progress(done=3, total=3, build=1)
    reader.feed(b"[11/400] outer\n")
    assert reader.progress == Progress(done=11, total=400, build=0)


def test_a_build_that_is_started_again_after_a_failure() -> None:
    reader = read(b"[100/345] a\nFAILED: x\n[1/246] a\n[2/246] b\n")
    assert reader.progress == Progress(done=2, total=246, build=1)


def test_percentages_out_of_order_are_one_build() -> None:
    reader = read(b"[ 10%] a\n[ 12%] b\n[ 11%] c\n")
    assert reader.progress == Progress(done=12, total=100)
    reader.feed(b"[100%] done\n[  1%] next library\n")
    assert reader.progress == Progress(done=1, total=100, build=1)


def test_commands_shown_by_a_counted_build_do_not_count() -> None:
    reader = read(b"[1/9] g++ -c a.cpp -o a.o\ng++ -c a.cpp -o a.o\n[ 20%] x\ncc -c a.c -o a.o\n")
    assert reader.progress == Progress(done=20, total=100, build=1)


def test_plain_make_before_ninja() -> None:
    reader = read(b"cc -c a.c -o a.o\ncc -c b.c -o b.o\n[1/9] a\n[9/9] b\ncc -c c.c -o c.o\n")
    assert reader.progress == Progress(done=1, total=None, build=2)
    assert reader.progress.fraction is None


def test_fractions() -> None:
    assert Progress(done=1, total=4).fraction == 0.25
    assert Progress(done=1, total=None).fraction is None


@pytest.mark.parametrize("generator", ["Ninja", "Unix Makefiles"])
def test_real_output(tmp_path: Path, generator: str) -> None:
    if shutil.which("cmake") is None or shutil.which("cc") is None:
        pytest.skip("needs cmake and a C compiler")
    if generator == "Ninja" and shutil.which("ninja") is None:
        pytest.skip("needs ninja")
    names = [f"f{number}.c" for number in range(6)]
    for name in names:
        (tmp_path / name).write_text(f"int {name[:-2]};\n")
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.17)\nproject(p C)\nadd_library(l STATIC {' '.join(names)})\n"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("CMAKE_", "MAKE", "NINJA"))}
    reader = ProgressReader()
    seen: list[float] = []
    for argv in (
        ["cmake", "-G", generator, "-S", str(tmp_path), "-B", str(tmp_path / "b")],
        ["cmake", "--build", str(tmp_path / "b"), "--verbose"],
    ):
        output = subprocess.run(
            argv, env=clean, capture_output=True, check=True, timeout=120
        ).stdout
        for line in output.splitlines(keepends=True):
            reader.feed(line)
            if reader.progress is not None and reader.progress.fraction is not None:
                seen.append(reader.progress.fraction)
    assert seen == sorted(seen)
    assert 0 < seen[0] < 0.5
    assert seen[-1] == 1.0


# --- what remains -------------------------------------------------------------------------------


def run_of(seconds: list[float], *, build: int = 0, extra_s: float = 0.0) -> StepRun:
    """An earlier run: its files were done at these seconds."""
    total = len(seconds)
    curve = tuple(
        CurvePoint(build=build, done=number, total=total, elapsed_s=time)
        for number, time in enumerate(seconds, 1)
    )
    return StepRun(wall_s=seconds[-1] + extra_s, curve=curve)


def observe(remaining: RemainingTime, points: list[tuple[int, int, float]], build: int = 0) -> None:
    for done, total, elapsed in points:
        remaining.observe(Progress(done=done, total=total, build=build), elapsed)


def test_unknown_without_history_and_counts() -> None:
    remaining = RemainingTime()
    assert remaining.remaining_s(10.0) is None
    remaining.observe(Progress(done=50, total=None), 10.0)
    assert remaining.remaining_s(20.0) is None
    fresh = RemainingTime()
    observe(fresh, [(1, 1000, 1.0), (2, 1000, 2.0)])
    assert fresh.remaining_s(2.0) is None, "two of a thousand say nothing"


def test_the_present_rate_without_history() -> None:
    remaining = RemainingTime()
    observe(remaining, [(number, 100, 10.0 + number * 2.0) for number in range(1, 51)])
    assert remaining.remaining_s(110.0) == pytest.approx(100.0)
    assert remaining.remaining_s(115.0) == pytest.approx(95.0), "time goes on without counts"
    assert remaining.remaining_s(900.0) == 0.0


def test_the_rate_is_that_of_the_present_build() -> None:
    remaining = RemainingTime()
    observe(remaining, [(number, 20, number * 0.01) for number in range(1, 21)])
    observe(remaining, [(number, 40, 100.0 + number) for number in range(1, 21)], build=1)
    assert remaining.remaining_s(120.0) == pytest.approx(20.0)


def test_history_accounts_for_a_slow_end() -> None:
    """80 quick files, then 20 that take ten times as long."""
    times = [float(n) for n in range(1, 81)] + [80.0 + 10.0 * n for n in range(1, 21)]
    remaining = RemainingTime(run_of(times, extra_s=15.0))
    observe(remaining, [(n, 100, float(n)) for n in range(1, 81)])
    assert remaining.remaining_s(80.0) == pytest.approx(215.0)
    by_rate = RemainingTime()
    observe(by_rate, [(n, 100, float(n)) for n in range(1, 81)])
    assert by_rate.remaining_s(80.0) == pytest.approx(20.0), "what the rate alone would say"


def test_a_slower_run_scales_the_history() -> None:
    times = [float(n) for n in range(1, 101)]
    remaining = RemainingTime(run_of(times))
    observe(remaining, [(n, 100, 2.0 * n) for n in range(1, 51)])
    assert remaining.remaining_s(100.0) == pytest.approx(100.0)
    early = RemainingTime(run_of(times))
    observe(early, [(1, 100, 2.0), (2, 100, 4.0)])
    estimate = early.remaining_s(4.0)
    assert estimate is not None
    assert 98.0 < estimate < 110.0, "two files are no reason to double everything"


def test_before_any_count_the_earlier_time_counts() -> None:
    remaining = RemainingTime(run_of([1.0, 2.0], extra_s=98.0))
    assert remaining.remaining_s(10.0) == pytest.approx(90.0)
    assert remaining.remaining_s(200.0) is None, "later than ever, and nothing to go by"


def test_a_resumed_build_counts_only_the_rest() -> None:
    """The second half of 100 files, numbered from 1 to 50 by ninja."""
    times = [float(n) for n in range(1, 51)] + [50.0 + 3.0 * n for n in range(1, 51)]
    remaining = RemainingTime(run_of(times))
    observe(remaining, [(n, 50, 3.0 * n) for n in range(1, 11)])
    assert remaining.remaining_s(30.0) == pytest.approx(120.0, rel=0.05)


def test_sub_builds_are_distinguished() -> None:
    first = [CurvePoint(build=0, done=n, total=10, elapsed_s=float(n)) for n in range(1, 11)]
    second = [CurvePoint(build=1, done=n, total=90, elapsed_s=10.0 + n) for n in range(1, 91)]
    earlier = StepRun(wall_s=100.0, curve=(*first, *second))
    remaining = RemainingTime(earlier)
    observe(remaining, [(n, 10, float(n)) for n in range(1, 6)])
    assert remaining.remaining_s(5.0) == pytest.approx(95.0)
    observe(remaining, [(n, 90, 10.0 + n) for n in range(1, 46)], build=1)
    assert remaining.remaining_s(55.0) == pytest.approx(45.0)


def test_plain_make_uses_the_count_alone() -> None:
    curve = tuple(CurvePoint(build=0, done=n, total=0, elapsed_s=2.0 * n) for n in range(1, 51))
    remaining = RemainingTime(StepRun(wall_s=100.0, curve=curve))
    for number in range(1, 26):
        remaining.observe(Progress(done=number, total=None), 2.0 * number)
    assert remaining.remaining_s(50.0) == pytest.approx(50.0)


def test_the_curve_is_what_was_seen_once_each() -> None:
    remaining = RemainingTime()
    observe(remaining, [(1, 9, 1.0), (1, 9, 2.0), (2, 9, 3.0)])
    assert [(point.done, point.elapsed_s) for point in remaining.curve] == [(1, 1.0), (2, 3.0)]


@given(
    earlier=st.lists(st.floats(0.001, 100), min_size=1, max_size=40),
    steps=st.lists(st.floats(0, 100), min_size=1, max_size=40),
    total=st.integers(1, 60),
)
def test_estimates_are_never_negative_or_strange(
    earlier: list[float], steps: list[float], total: int
) -> None:
    times = [sum(earlier[: number + 1]) for number in range(len(earlier))]
    remaining = RemainingTime(run_of(times))
    elapsed = 0.0
    for number, step in enumerate(steps[:total], 1):
        elapsed += step
        remaining.observe(Progress(done=number, total=total), elapsed)
        estimate = remaining.remaining_s(elapsed)
        assert estimate is None or 0 <= estimate <= times[-1] * 10 + 1
