"""Comparisons with torch in real pytest processes: limits, planted slowdowns, saved sessions, xdist.

The machine may be noisy: a result that is untrusted or undecided passes with a note, and these tests
accept it. They fail if equal code exceeds its limit, or if planted work is reported as within it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pytest_plugin.pytest_process import run_pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

OPERATIONS = """
import torch

def work(x, repeats):
    for _ in range(repeats):
        y = x @ x
    return y

def baseline(x):
    return work(x, 20)

def equal(x):
    return work(x, 20)

def slower(x):
    return work(x, 22)

def wrong(x):
    return work(x, 20) + 1
"""
LIMITED = """
import operations, pytest, torch

X = torch.randn(64, 64)

@pytest.mark.torchyard(limit="5%")
@pytest.mark.parametrize("name", ["equal", "slower"])
def test_limit(torchyard_compare, name):
    result = torchyard_compare(operations.baseline, getattr(operations, name), (X,))
    assert result.run is not None
"""
NOTES = ("cannot be trusted", "contains the limit", "not checked: ")


def test_planted_work_fails_and_equal_code_passes(tmp_path: Path) -> None:
    files = {"operations.py": OPERATIONS, "test_it.py": LIMITED}
    session = run_pytest(tmp_path, files=files)
    equal = session.line("test_it.py::test_limit[equal]: ")
    assert "within the limit 5.0%" in equal or any(note in equal for note in NOTES)
    slower = session.line("test_it.py::test_limit[slower]: ")
    failed = "slower than the baseline by more than the limit 5.0%" in slower
    assert failed or any(note in slower for note in NOTES), session.output
    assert session.code == (1 if failed else 0), session.output
    assert ("FAILED test_it.py::test_limit[slower]" in session.output) == failed
    assert "FAILED test_it.py::test_limit[equal]" not in session.output


SHORT = """
import operations, pytest, torch

X = torch.randn(64, 64)

def test_wrong(torchyard_compare):
    torchyard_compare(operations.baseline, operations.wrong, (X,))

def test_closures(torchyard_compare):
    first = torchyard_compare(lambda x: x + x, lambda x: 2 * x, (X,))
    second = torchyard_compare(lambda x: x + x, lambda x: 2 * x, (X,), time="1h")
    assert first.scope == second.scope == "this process only"
    assert first.run != second.run

def test_raises(torchyard_compare):
    torchyard_compare(operations.baseline, operations.missing, (X,))
"""


@pytest.mark.parametrize("arguments", [(), ("-n2",)])
def test_results_are_listed_saved_and_compared(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    files = {"operations.py": OPERATIONS, "test_it.py": SHORT}
    options = ("--torchyard-time=300ms", "-Werror", *arguments)
    session = run_pytest(tmp_path, *options, "--torchyard-save=main", files=files)
    assert session.code == 1
    assert "2 failed, 1 passed" in session.output, session.output
    assert "results wrong" in session.line("test_it.py::test_wrong: wrong, ")
    for number in ("", " #2"):
        assert "x " in session.line(f"test_it.py::test_closures{number}: ")
    assert "has no attribute 'missing'" in session.output
    assert session.line("saved ") == "saved 3 comparisons as the baseline main"
    runs = list((tmp_path / "home" / "runs").iterdir())
    assert len(runs) == 3
    assert all('"state": "finished"' in (run / "run.json").read_text() for run in runs)

    again = run_pytest(tmp_path, *options, "-k", "closures", "--torchyard-compare=main")
    assert again.code == 0, again.output
    for number in ("", " #2"):
        # One process is never enough to compare two sessions.
        line = again.line(f"test_it.py::test_closures{number}: ")
        assert "since main" in line
        assert "not supported: " in line


def test_a_result_without_a_verdict_is_measured_again(tmp_path: Path) -> None:
    # The time suffices for one launch at first, which cannot be checked against a limit.
    files = {"operations.py": OPERATIONS, "test_it.py": LIMITED}
    session = run_pytest(
        tmp_path, "--torchyard-time=0.3s", "--torchyard-retries=2", "-k", "equal", files=files
    )
    line = session.line("test_it.py::test_limit[equal]: ")
    measurements = next((n for n in (3, 2) if f", measurement {n}" in line), 1)
    runs = sorted((tmp_path / "home" / "runs").iterdir())
    assert len(runs) == measurements, line
    assert measurements > 1, line
    times = [
        json.loads((run / "run.json").read_text())["study"]["budget"]["time_s"] for run in runs
    ]
    assert times == [0.3 * 2**index for index in range(measurements)]
