"""Any log gives a diagnosis in bounded time and size."""

from __future__ import annotations

import io
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from torchyard.builds.diagnosis.diagnose import diagnose
from torchyard.builds.diagnosis.model import describe
from torchyard.builds.diagnosis.signature import load_signatures, required_fragments

LOGS = sorted((Path(__file__).parent / "logs").glob("*.log"))
FRAGMENTS = sorted(
    {f for s in load_signatures() for p in (*s.any, *s.all) for f in required_fragments(p)}
)


@given(st.binary(max_size=2000))
@example(b"\xff\xfe\x00")
@example(b"CMake Error at")
@example(b"FAILED: ")
@example(b"Traceback (most recent call last):")
@example(b"Change Dir: CMakeTmp\nFAILED: x")
@settings(max_examples=150, deadline=None)
def test_any_bytes_give_a_diagnosis(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(data)
    assert describe(diagnose(path, exit_code=1))


@given(st.text(max_size=500))
def test_any_text_gives_a_diagnosis(text: str) -> None:
    found = diagnose(text, wanted_names=(text,), release=text, machine=text)
    assert describe(found)


_PIECE = st.one_of(
    st.sampled_from(FRAGMENTS),
    st.sampled_from(
        ["error: ", "fatal: ", "\n", "  ", "CMake Error at x (y):\n", "'", '"', "(", ")"]
    ),
    st.sampled_from(
        ["FAILED: ", "Traceback (most recent call last):\n", "[1/2] ", "\r", "\x1b[31m"]
    ),
    st.text(max_size=5),
)


@given(st.lists(_PIECE, max_size=60).map("".join))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_pieces_of_messages_in_any_order_give_a_diagnosis(text: str) -> None:
    found = diagnose(text)
    assert describe(found)
    lines = text.count("\n") + 1
    for cause in found.causes:
        assert cause.evidence
        assert all(0 <= evidence.line <= lines for evidence in cause.evidence)
        assert all(command.isprintable() for command in cause.commands)
    assert found.first_error is None or 1 <= found.first_error.line <= lines


@given(st.sampled_from(LOGS), st.data())
@settings(max_examples=80, deadline=None)
def test_damaged_logs_give_a_diagnosis(path: Path, data: st.DataObject) -> None:
    raw = path.read_bytes()
    at = data.draw(st.integers(0, len(raw)))
    junk = data.draw(st.binary(max_size=20))
    cut = data.draw(st.integers(at, len(raw)))
    assert describe(diagnose((raw[:at] + junk + raw[cut:]).decode("latin-1")))


def test_two_failed_attempts_in_one_log_are_both_found_the_last_one_first() -> None:
    one, two = (LOGS[0].parent / name for name in ("compiler-killed.log", "header-missing.log"))
    found = diagnose(one.read_text(encoding="utf-8") + two.read_text(encoding="utf-8"))
    assert [cause.id for cause in found.causes] == ["header-missing", "compiler-out-of-memory"]


def test_the_causes_of_all_logs_together_are_all_found() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in LOGS)
    found = {cause.id for cause in diagnose(text).causes}
    # Some say less than others about the same lines; each of the others must be there.
    assert len(found) > 100


def test_lines_made_to_be_slow_are_not() -> None:
    hostile = [(fragment + " ") * (70_000 // (len(fragment) + 1)) for fragment in FRAGMENTS]
    hostile += [" " * 200_000, "\t" * 200_000, " " * 200_000 + "error: x", "1" * 200_000 + " |"]
    hostile += ["[" + " " * 200_000, "nvcc" + " " * 4000 + "error", "error: rustc " * 5000]
    hostile += ["six-download/" + "a" * 60_000, "=" * 60_000 + " 1 passed", "1 passed, " * 9000]
    hostile += ["FAILED: x\n" + "cd a && " * 9000, "a-" * 30_000 + "gcc", "FAILED: " * 9000]
    hostile += ["a:" * 30_000 + "error", "(" * 60_000, "/" * 60_000 + ": error", "x" * 60_000]
    slowest_s = 0.0
    for line in hostile:
        began_s = time.process_time()
        diagnose(line + "\n")
        slowest_s = max(slowest_s, time.process_time() - began_s)
    assert slowest_s < 10


def test_a_log_that_is_all_errors_is_still_read_quickly() -> None:
    line = "/build/some/long/path/file.cpp:12:34: error: undefined reference to `f'\n"
    began_s = time.process_time()
    found = diagnose(line * 20_000)
    assert time.process_time() - began_s < 60
    assert found.first_error is not None
    assert found.first_error.line == 1
    assert found.causes[0].matches == 20_000


@pytest.mark.parametrize(
    "piece",
    [
        b" " * (1 << 20),
        b" " * 200_000 + b"error: x\n",
        b"/build/a.cpp:1:2: warning: unused [-Wunused]\n" * 5_000,
        b"x" * (1 << 20),
        b"\0" * (1 << 20),
        b"\r" * (1 << 20),
        b"[1/2] c++ -DUSE_CUDA=1 -c a.cpp\n" * 5_000,
        b"c++ -DUSE_CUDA=1 -DUSE_MKL -c error.cpp -o error.o\n" * 3_000,
    ],
    ids=range(8),
)
def test_a_large_log_takes_linear_time_and_little_memory(piece: bytes) -> None:
    """Ten times as long a stream, which no text of that length is ever made of."""

    class Repeated(io.RawIOBase):
        def __init__(self, count: int) -> None:
            self._left = len(piece) * count
            self._at = 0

        def read(self, size: int = -1) -> bytes:
            size = min(size if size >= 0 else self._left, self._left, len(piece) - self._at)
            found = piece[self._at : self._at + size]
            self._at = (self._at + size) % len(piece)
            self._left -= size
            return found

    def took_s(count: int) -> float:
        began_s = time.process_time()
        diagnose(Repeated(count))  # type: ignore[arg-type]
        return time.process_time() - began_s

    took_s(1)
    once_s = took_s(1)
    assert took_s(10) < 10 * once_s * 3 + 1
    tracemalloc.start()
    diagnose(Repeated(4))  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20
