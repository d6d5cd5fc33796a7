"""User files have short names in every format for people; formats for programs keep the path."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.sample_run import COMPARISONS, STUDY, write_run
from torchyard.bench.commands.execution import BenchSession
from torchyard.bench.report.formats import FORMATS
from torchyard.bench.report.sharing import redacted_run
from torchyard.bench.report.shown_run import shown_run
from torchyard.core.events import Event
from torchyard.core.study import Workload
from torchyard.results.run_reader import Run, read_run

FIRST = Workload(suite="file", name="/home/alice/one/model.py:Net")
SECOND = Workload(suite="file", name="/home/alice/two/model.py:Net")
ALONE = Workload(suite="file", name="/home/alice/<b>only.py")
WORKLOADS = (FIRST, SECOND, ALONE)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    comparisons = tuple(replace(COMPARISONS[0], workload=one) for one in WORKLOADS)
    study = replace(STUDY, workloads=WORKLOADS, candidates=STUDY.candidates[:1])
    return write_run(tmp_path / "run", study=study, comparisons=comparisons)


@pytest.mark.parametrize("name", ["terminal", "markdown", "html"])
def test_formats_for_people_show_short_names(run: Run, name: str) -> None:
    text = FORMATS[name](run)
    assert "one/model.py:Net inference" in text
    assert "two/model.py:Net inference" in text
    assert "file//home" not in text
    assert text.count("/home/alice") == (3 if name == "html" else 0)  # the list of files


def test_a_hostile_file_name_is_escaped_in_html(run: Run) -> None:
    page = FORMATS["html"](run)
    assert "&lt;b&gt;only.py inference" in page
    assert "/home/alice/&lt;b&gt;only.py" in page
    assert "<b>only" not in page


def test_json_has_the_short_name_and_the_path(run: Run) -> None:
    rows = json.loads(FORMATS["json"](run))["comparisons"]
    assert [row["title"] for row in rows[:2]] == [
        "one/model.py:Net inference",
        "two/model.py:Net inference",
    ]
    assert [row["label"] for row in rows] == [one.label for one in WORKLOADS]
    assert [row["workload"]["name"] for row in rows] == [one.name for one in WORKLOADS]


def test_samples_stay_with_their_workload(run: Run) -> None:
    shown = shown_run(run)
    blocks, shown_blocks = run.blocks_by_workload(), shown.blocks_by_workload()
    assert blocks[SECOND.label]
    assert blocks[SECOND.label] == shown_blocks["two/model.py:Net inference"]
    first = shown.comparisons[0].workload
    assert [label for label, _ in shown.blocks(first)][:1] == ["one/model.py:Net inference"]
    assert shown.launches() == run.launches()


def test_nothing_stored_changes(run: Run) -> None:
    assert [one.workload for one in read_run(run.folder).comparisons] == list(WORKLOADS)
    stored = (run.folder / "samples.jsonl").read_text()
    assert SECOND.label in stored


def test_a_shared_report_names_no_file(run: Run) -> None:
    for name in ("terminal", "markdown", "html", "json"):
        text = FORMATS[name](redacted_run(run))
        assert "alice" not in text
        assert "model.py" not in text


def test_the_terminal_and_the_progress_show_short_names(
    capsys: pytest.CaptureFixture[str], run: Run
) -> None:
    session = BenchSession(study=run.study, folder=run.folder, quiet=True)
    session.comparisons = list(run.comparisons)[:1]
    session.print_table()
    session.print_answer()
    out = capsys.readouterr().out
    assert "inductor is faster than eager on model.py:Net inference: " in out
    assert "/home" not in out
    events: list[Event] = []
    listener = session._with_short_names(events.append)
    listener(Event(kind="phase", text="compiling", workload=SECOND.label))
    assert events[0].workload == "two/model.py:Net inference"
