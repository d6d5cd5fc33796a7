"""Output on real terminals of several widths: nothing is wider, nothing is printed twice."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.bench.sample_run import write_run
from tests.cli.command_line import program
from tests.cli.terminal import Terminal

WIDTHS = [80, 120, 200]
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Session:
    """A command on a terminal of a given width."""

    def __init__(self, width: int, *arguments: str, cwd: Path) -> None:
        self._terminal = Terminal()
        size = struct.pack("HHHH", 40, width, 0, 0)
        fcntl.ioctl(self._terminal.side, termios.TIOCSWINSZ, size)
        without = {"NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR"}
        kept = {name: value for name, value in os.environ.items() if name not in without}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torchyard", *arguments],
            stdin=self._terminal.side,
            stdout=self._terminal.side,
            stderr=self._terminal.side,
            env={**kept, "TERM": "xterm-256color", "TORCHYARD_HOME": str(cwd / "home")},
            cwd=cwd,
        )

    def wait(self) -> tuple[str, str]:
        """Return everything that was shown, with and without escape sequences."""
        self.process.wait(120)
        raw = self._terminal.close()
        return raw, _ESCAPES.sub("", raw)


def lines_of(text: str) -> list[str]:
    return [part for line in text.split("\n") for part in line.split("\r")]


LONG = ["sleep 0.001 0.001 0.001 0.001 0.001", "sh -c 'true a-very-long-argument-of-a-program'"]
COMMANDS = [word for text in LONG for word in ("--command", text)]


@pytest.mark.parametrize("width", WIDTHS)
def test_bench_fits_the_terminal(tmp_path: Path, width: int) -> None:
    options = ["--launches", "3", "--run-dir", "run"]
    session = Session(width, "bench", *COMMANDS, *options, cwd=tmp_path)
    raw, shown = session.wait()
    assert session.process.returncode in (0, 6), shown
    assert max(map(len, lines_of(shown))) <= width
    assert "\x1b[" in raw
    table = shown[shown.index("speedup") :]
    assert " ".join(table.split()).count("of memory") == 2
    assert "next: torchyard report run --output report.html" in table
    widest = max(len(line.rstrip()) for line in lines_of(table))
    assert widest > width // 2, "the width is used"


@pytest.mark.parametrize("width", WIDTHS)
def test_report_fits_the_terminal(tmp_path: Path, width: int) -> None:
    write_run(tmp_path / "run")
    raw, shown = Session(width, "report", "run", cwd=tmp_path).wait()
    assert max(map(len, lines_of(shown))) <= width
    assert "\x1b[" in raw, "colored"
    piped = program("report", "run", cwd=tmp_path, COLUMNS=str(width)).out
    assert max(map(len, piped.splitlines())) <= width
    assert "\x1b[" not in piped


def test_a_piped_report_is_120_columns_wide(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    text = program("report", "run", cwd=tmp_path).out
    rule = next(line for line in text.splitlines() if line.startswith("──"))
    assert 100 < len(rule) <= 120


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_shows_what_it_has(tmp_path: Path, number: signal.Signals) -> None:
    arguments = ["--command", "sleep 0.01", "--command", "sleep 0.02", "--time", "500s"]
    session = Session(
        80, "bench", *arguments, "--precision-goal", "0%", "--run-dir", "run", cwd=tmp_path
    )
    launches = tmp_path / "run" / "launches.jsonl"
    deadline = time.monotonic() + 100
    while not launches.exists() or launches.read_text().count("\n") < 3:
        assert time.monotonic() < deadline
        assert session.process.poll() is None
        time.sleep(0.01)
    session.process.send_signal(number)
    _, shown = session.wait()
    assert session.process.returncode == 128 + number
    assert max(map(len, lines_of(shown))) <= 80
    assert "interrupted: 0 of 1 comparisons completed, 1 with the pairs so far" in shown
    assert "sleep 0.02" in shown[shown.index("speedup") :]
    words = " ".join(shown.split())
    assert f"repeat a row: torchyard bench --row {tmp_path}/run:N" in words
    assert "run folder: run" in shown


def test_interrupted_before_the_first_pair(tmp_path: Path) -> None:
    session = Session(
        80,
        "bench",
        "--command",
        "sleep 99",
        "--command",
        "sleep 98",
        "--run-dir",
        "run",
        cwd=tmp_path,
    )
    deadline = time.monotonic() + 100
    while not (tmp_path / "run" / "logs" / "workload-000" / "command-0.stderr").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    session.process.send_signal(signal.SIGTERM)
    _, shown = session.wait()
    assert session.process.returncode == 143
    assert "interrupted: 0 of 1 comparisons completed" in shown
    assert "pairs so far" not in shown
    assert "run folder: run" in shown
