"""Reading logs: any bytes, any size, the right line numbers."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard.builds.diagnosis import log_blocks
from torchyard.builds.diagnosis.diagnose import diagnose
from torchyard.builds.diagnosis.log_blocks import (
    LINE_LIMIT_BYTES,
    MATCH_LIMIT,
    as_text,
    read_blocks,
    shortened,
)


def lines_of(data: bytes) -> list[tuple[int, str]]:
    return [
        (number, as_text(raw))
        for block in read_blocks(io.BytesIO(data))
        for number, raw in block.lines()
    ]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_blocks, "BLOCK_BYTES", 7)


def test_lines_are_numbered_from_one_and_empty_ones_counted() -> None:
    assert lines_of(b"a\n\nb\r\n\nc") == [(1, "a"), (3, "b"), (5, "c")]


@pytest.mark.usefixtures("small_blocks")
def test_blocks_that_end_anywhere_do_not_change_the_numbers() -> None:
    data = b"first line\r\nsecond\r\n\r\nfourth line is longer\nfifth"
    assert lines_of(data) == [
        (1, "first line"),
        (2, "second"),
        (4, "fourth line is longer"),
        (5, "fifth"),
    ]


@pytest.mark.usefixtures("small_blocks")
def test_the_texts_of_a_progress_bar_share_a_line() -> None:
    assert lines_of(b"10%\r20%\rerror: x\nnext\n") == [
        (1, "10%"),
        (1, "20%"),
        (1, "error: x"),
        (2, "next"),
    ]


def test_colours_and_titles_are_taken_out() -> None:
    coloured = b"\x1b[01m\x1b[Ka.cpp:1:1:\x1b[m\x1b[K \x1b[01;31merror: \x1b[mno\n\x1b]0;t\x07x\n"
    assert lines_of(coloured) == [(1, "a.cpp:1:1: error: no"), (2, "x")]


def test_quotes_of_gcc_become_plain() -> None:
    assert lines_of("‘x’ “y”".encode()) == [(1, "'x' \"y\"")]


def test_undecodable_bytes_and_controls_are_harmless() -> None:
    assert lines_of(b"a\xff\x00b\x07\n") == [(1, "a� b")]


@pytest.mark.parametrize(
    "stamp", ["2025-11-15T04:51:00.1234567Z ", "#12 259.1 ", "[  418s] ", "[ 1s] "]
)
def test_time_stamps_of_build_services_are_taken_out(stamp: str) -> None:
    log = "".join(f"{stamp}{line}\n" for line in ("make all", "x.c:1:1: error: no", "more"))
    found = diagnose(log).first_error
    assert found is not None
    assert (found.line, found.text) == (2, "x.c:1:1: error: no")


def test_a_line_without_end_is_kept_short_with_both_its_ends() -> None:
    data = b"begin " + b"x" * (3 * LINE_LIMIT_BYTES) + b" end\nnext\n"
    (first, text), (second, after) = lines_of(data)
    assert (first, second, after) == (1, 2, "next")
    assert text.startswith("begin ")
    assert text.endswith(" end")


def test_patterns_see_both_ends_of_a_long_line() -> None:
    text = "a" * 10_000 + "b"
    assert len(shortened(text)) == MATCH_LIMIT
    assert shortened(text)[0] == "a"
    assert shortened(text)[-1] == "b"
    assert shortened("short") == "short"
    ends = diagnose("Command '" + "x" * 300_000 + "' died with <Signals.SIGKILL: 9>.\n")
    assert [cause.id for cause in ends.causes] == ["process-killed"]


@given(st.binary(max_size=400), st.integers(min_value=1, max_value=9))
@settings(deadline=None)
def test_the_size_of_blocks_never_matters(data: bytes, size: int) -> None:
    whole = lines_of(data)
    before = log_blocks.BLOCK_BYTES
    log_blocks.BLOCK_BYTES = size
    try:
        cut = lines_of(data)
    finally:
        log_blocks.BLOCK_BYTES = before
    if b"\x1b" not in data:  # a sequence that a carriage return cuts in two is seen as text
        assert cut == whole
    assert [number for number, _ in cut] == sorted(number for number, _ in cut)
    assert all(number <= data.count(b"\n") + 1 for number, _ in cut)


def test_a_large_log_takes_little_memory(tmp_path: Path) -> None:
    log = tmp_path / "large.log"
    noise = (
        b"[12/6931] /usr/bin/c++ -Werror=return-type -c /build/error.cpp -o error.cpp.o\n"
        b"/build/a.h:1:2: warning: unused [-Wunused]\n  1 | int x;\n      |     ^\n"
    )
    with log.open("wb") as file:
        for _ in range(5):
            file.write(noise * 5000)
        file.write(b"x" * 5_000_000 + b"\n")
        file.write(b"c++: fatal error: Killed signal terminated program cc1plus\n")
    tracemalloc.start()
    try:
        found = diagnose(log)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.causes[0].id == "compiler-out-of-memory"
    assert found.causes[0].evidence[0].line == found.lines == 100_002
    assert log.stat().st_size > 8_000_000
    assert peak_bytes < 4_000_000
