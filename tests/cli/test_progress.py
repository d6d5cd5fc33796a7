"""Progress lines in a log: bounded in number, and always up to date."""

from __future__ import annotations

import time

import pytest

from torchyard.cli import progress
from torchyard.core.events import Event, EventKind

Capture = pytest.CaptureFixture[str]


def phase(text: str, kind: EventKind = "phase") -> Event:
    return Event(kind=kind, text=text, workload="kernels/matmul")


def lines_within(capsys: Capture, limit_s: float, *texts: str) -> str:
    """All that was told until the texts were, or until the time is over."""
    output, ends = "", time.monotonic() + limit_s
    while time.monotonic() < ends and not all(text in output for text in texts):
        time.sleep(0.01)
        output += capsys.readouterr().err
    return output


def test_only_the_last_of_many_progress_lines_is_shown(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_PAUSE_S", 0.3)
    with progress.show_progress(progress.ComparisonCollector(), quiet=False) as listener:
        for number in range(50):
            listener(phase(f"step {number}"))
        # THEN nothing is told at once, and then only what is being done now
        assert capsys.readouterr().err == ""
        output = lines_within(capsys, 20.0, "step 49")
    assert output.count("\n") == 1
    assert "step 49" in output


def test_results_are_shown_immediately_and_drop_pending_progress(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_PAUSE_S", 0.3)
    with progress.show_progress(progress.ComparisonCollector(), quiet=False) as listener:
        listener(phase("compiling"))
        listener(phase("it crashed", "warning"))
        assert "warning: kernels/matmul: it crashed" in capsys.readouterr().err
        listener(phase("measuring"))
        output = lines_within(capsys, 20.0, "measuring")
    assert "compiling" not in output


def test_no_progress_is_shown_after_the_end(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_PAUSE_S", 0.1)
    with progress.show_progress(progress.ComparisonCollector(), quiet=False) as listener:
        listener(phase("compiling"))
    assert lines_within(capsys, 0.4, "compiling") == ""
