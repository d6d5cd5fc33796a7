"""The index over folders that are damaged, of a newer format, or not runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.results.run_directories import change_facts, compared, day, write_run
from tests.results.run_samples import GPT
from torchyard.results.index.store import Store
from torchyard.results.model import RunFilter

RUNS = 3


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = tmp_path / "runs"
    first = write_run(home, day(1), [compared(), compared(GPT, speedup=0.9)])
    for number in range(2, RUNS + 1):
        shutil.copytree(first, home / day(number))
    return home


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: (folder / "run.json").write_text("{"), "not JSON"),
        (lambda folder: (folder / "run.json").write_text("[]"), "not the facts of a run"),
        (lambda folder: change_facts(folder, format=99), "newer Torchyard"),
        (lambda folder: change_facts(folder, state="asleep"), "unknown state 'asleep'"),
        (lambda folder: change_facts(folder, study={"name": 3}), "3 is not a string"),
        (lambda folder: change_facts(folder, study=None), "None is not a table"),
        (lambda folder: (folder / "comparisons.jsonl").unlink(), "comparisons.jsonl is missing"),
        (lambda folder: (folder / "run.json").unlink(), "run.json is missing"),
        (
            lambda folder: (folder / "comparisons.jsonl").write_text("x\n{}\n"),
            "comparisons.jsonl, line 1: not a complete record",
        ),
        (
            lambda folder: (folder / "comparisons.jsonl").write_text("{}\n"),
            "comparisons.jsonl, line 1: not a comparison",
        ),
        (lambda folder: (folder / "run.json").write_text('{"a":' * 100_000), "not JSON"),
    ],
)
def test_a_damaged_folder_stops_nothing(home: Path, spoil: object, says: str) -> None:
    assert callable(spoil)
    with Store.open(home) as store:
        assert store.refresh().runs == RUNS
    bad = home / day(9)
    shutil.copytree(home / day(1), bad)
    spoil(bad)
    with Store.open(home) as store:
        refreshed = store.refresh()
        assert (refreshed.runs, refreshed.added, refreshed.damaged) == (RUNS + 1, 1, 1)
        run = store.run(day(9))
        assert says in run.damage
        assert str(home) not in run.damage
        assert run.started.startswith("2025-01-0")
        assert len(store.comparisons(RunFilter())) == 2 * RUNS
        assert store.run("latest").id != day(9)
        # Looked at again each time, since a newer Torchyard may read it, but not written again.
        assert store.refresh().changed == 0
        shutil.rmtree(bad)
        shutil.copytree(home / day(1), bad)
        assert store.refresh().changed == 1
        assert store.run(day(9)).damage == ""


def test_facts_are_kept_when_only_records_are_damaged(home: Path) -> None:
    (home / day(1) / "comparisons.jsonl").write_text("x\n{}\n")
    with Store.open(home) as store:
        store.refresh()
        run = store.run(day(1))
    assert (run.study, run.torch, run.state) == ("eager against inductor", "2.9.0", "finished")
    assert run.machine.startswith("example-9000")


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    home = tmp_path / "runs"
    write_run(home, day(1), [compared()])
    (home / "notes").mkdir()
    (home / "notes" / "paper.tex").write_text("")
    (home / "file.txt").write_text("")
    (home / day(2)).mkdir()
    for name in ("launches.jsonl", "samples.jsonl", "comparisons.jsonl"):
        (home / day(2) / name).write_text("")  # a run that begins in this moment
    (home / f".{day(3)}.removed-0123").mkdir()
    shutil.copytree(home / day(1), home / ".import-0123" / day(4))
    (home / os.fsdecode(b"bytes-\xff")).mkdir()
    (home / "link").symlink_to(home / day(1))
    (home / "nowhere").symlink_to(home / "none")
    with Store.open(home) as store:
        refreshed = store.refresh()
        assert [run.id for run in store.runs(RunFilter())] in ([day(1), "link"], ["link", day(1)])
    assert (refreshed.runs, refreshed.damaged) == (2, 0)
