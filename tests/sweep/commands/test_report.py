"""`torchyard sweep report` on a finished sweep folder, without starting processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import call
from tests.sweep.sample_sweeps import cell, plan, study, workload
from torchyard.sweep.folder import SweepFolder

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def given_up(tmp_path: Path) -> Path:
    """One cell that died twice, and one that was never begun."""
    cells = [cell(number, study(workload(f"w{number}"))) for number in (1, 2)]
    folder = SweepFolder.create(tmp_path / "sweep", plan(cells))
    for _ in range(2):
        attempt = folder.begin(cells[0].id, place="node17")
        folder.end(cells[0].id, attempt.number, "died", why="no answer from /home/alice/x.py")
    folder.log_path(cells[0].id).write_text("last words of /home/alice/x.py\n")
    return folder.folder


def test_a_cell_without_a_run_is_a_row_with_its_log(capsys: Capture, given_up: Path) -> None:
    completed = call(capsys, "sweep", "report", str(given_up), "--json")
    assert completed.code == 0, completed.err
    document = json.loads(completed.out)
    first, second = document["rows"]
    assert (first["end"], first["tries"]) == ("crashed", 2)
    assert first["log_tail"] == "last words of /home/alice/x.py\n"
    assert (second["end"], second["reason"]) == ("not-finished", "waiting")


def test_sharing_leaves_out_paths(capsys: Capture, given_up: Path, tmp_path: Path) -> None:
    page = tmp_path / "for-others.html"
    completed = call(capsys, "sweep", "report", str(given_up), "--share", "--output", str(page))
    assert completed.code == 0, completed.err
    assert "last words of" in page.read_text()
    for text in (
        page.read_text(),
        call(capsys, "sweep", "report", str(given_up), "--share").out,
    ):
        assert "did not pass" in text.lower()
        assert "alice" not in text
    assert "alice" in call(capsys, "sweep", "report", str(given_up)).out


def test_a_report_of_a_run_beside_the_page_is_linked_only_if_there(
    capsys: Capture, given_up: Path, tmp_path: Path
) -> None:
    page = tmp_path / "sweep.html"
    assert call(capsys, "sweep", "report", str(given_up), "--output", str(page)).code == 0
    assert "No run has finished." in page.read_text()
