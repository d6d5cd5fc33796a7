"""The outcomes that the walk of a new user reads from pytest and from the gate."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

pytest.importorskip("yaml")
walk: Any = importlib.import_module("benchmarks.first_use")

LINE = "test_speed.py::test_limit[{}]: {}"
WITHIN = "same, 1.001x [0.996, 1.006]; within the limit 5.0%"
BEYOND = "slower, 0.909x [0.900, 0.918]; slower than the baseline by more than the limit 5.0%"
NOISY = (
    "untrusted, (0.895x [0.468, 2.004]), measurement 2; cannot be trusted: noisy machine: 32 of 32"
)
SHORT = "undecided, 1.0x [0.9, 1.1]; limit 5.0% not checked: the time allowed one launch only"
AROUND = "slower, 0.93x [0.90, 0.97]; undecided: the interval contains the limit 5.0%"


@pytest.mark.parametrize(
    ("case", "line", "failed", "outcome"),
    [
        ("equal", WITHIN, False, "right"),
        ("equal", BEYOND, True, "wrong"),
        ("slower", BEYOND, True, "right"),
        ("slower", WITHIN, False, "wrong"),
        ("slower", NOISY, False, "untrusted"),
        ("slower", NOISY, True, "wrong"),
        ("equal", SHORT, False, "untrusted"),
        ("slower", AROUND, False, "undecided"),
        ("equal", AROUND, True, "wrong"),
    ],
)
def test_a_result_that_is_not_usable_is_never_right(
    case: str, line: str, failed: bool, outcome: str
) -> None:
    output = LINE.format(case, line) + "\n"
    output += f"FAILED test_speed.py::test_limit[{case}] - Failed\n" if failed else ""
    assert walk.pytest_outcome(output, case) == (outcome, line)


def test_a_session_without_the_line_is_an_error() -> None:
    assert walk.pytest_outcome("ImportError: no module", "equal")[0] == "error"


@pytest.mark.parametrize(
    ("code", "standing", "outcome"),
    [
        (7, "crossed", "right"),
        (0, "crossed", "error"),
        (0, "kept", "wrong"),
        (7, "kept", "error"),
        (0, "untrusted", "untrusted"),
        (0, "undecided", "undecided"),
        (2, "", "error"),
    ],
)
def test_the_gate(code: int, standing: str, outcome: str) -> None:
    row = f"| 🚫 | net.py inference | (+17.0%) | +5.0% | {standing} |" if standing else ""
    assert walk.action_outcome(code, row) == outcome


def test_the_summary_counts_every_outcome() -> None:
    task = walk.Task(name="2 pytest", duration_s=10.4)
    task.outcomes += [("equal", "right"), ("slower", "untrusted"), ("slower", "right")]
    assert task.lines() == [
        "2 pytest: 10 s",
        "  equal: 1 of 1 right",
        "  slower: 1 of 2 right, 1 untrusted",
    ]
