"""Stored results of user files: shown by short names, kept apart by path, found by both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import call
from tests.results.run_directories import compared, day, write_run
from torchyard.core.study import Workload

Capture = pytest.CaptureFixture[str]
ONE = Workload(suite="file", name="/home/me/one/model.py:Net")
TWO = Workload(suite="file", name="/home/me/two/model.py:Net")
OTHER = Workload(suite="file", name="/home/me/other.py")


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "yard"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        rows = [compared(ONE), compared(TWO, speedup=1.5), compared(OTHER)]
        write_run(tmp_path / "yard" / "runs", day(number), rows)


@pytest.mark.parametrize(
    "arguments",
    [
        ["results", "show", "latest"],
        ["compare", day(1), day(2)],
        ["compare", day(1), day(2), "--format", "markdown"],
        ["compare", day(1), day(2), "--format", "html"],
        ["gate", "latest", "--baseline", day(1), "--max-slowdown", "2%"],
        ["history", "*.py*"],
        ["history", "*.py*", "--format", "markdown"],
        ["history", "*.py*", "--format", "html"],
        ["compare", "--over-time", "*.py*"],
        ["compare", "--over-time", "*.py*", "--format", "markdown"],
    ],
    ids=" ".join,
)
def test_views_for_people_show_short_names(capsys: Capture, arguments: list[str]) -> None:
    completed = call(capsys, *arguments)
    text = (completed.out + completed.err).replace("\\", "")
    assert "one/model.py:Net inference" in text, text
    assert "two/model.py:Net inference" in text
    assert "file//home" not in text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("model.py:Net", 2),
        ("model.py:Net inference", 2),
        ("one/model.py:Net", 1),
        ("file//home/me/one/model.py:Net", 1),
        ("other.py", 1),
        ("odel.py:Net", 0),
        ("model.py", 0),
        ("m[e]/other.py", 0),
    ],
)
def test_different_files_stay_different_series(capsys: Capture, text: str, count: int) -> None:
    completed = call(capsys, "compare", "--over-time", text, "--format", "json")
    series = json.loads(completed.out)["series"] if completed.code == 0 else []
    assert len({one["workload"] for one in series}) == len(series) == count
    assert all(one["workload"].startswith("file//home/me/") for one in series)
    assert all(len(one["points"]) == 2 for one in series)
