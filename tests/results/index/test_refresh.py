"""Which changes of a folder a refresh detects, and what it may skip."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.results.run_directories import change_facts, compared, day, write_run
from tests.results.run_samples import MATMUL, STUDY
from torchyard.core.comparison import Verdict
from torchyard.core.study import Workload
from torchyard.results.index import entries
from torchyard.results.index import store as refreshing
from torchyard.results.index.entries import (
    INDEX_FILE,
    FullMark,
    digest_of,
    entries_of,
    full_mark,
    marks_in,
)
from torchyard.results.index.store import Store
from torchyard.results.integrity import verify_run
from torchyard.results.model import RunFilter
from torchyard.results.run_changes import add_note
from torchyard.results.run_writer import RunWriter

GPT = Workload(suite="models", name="gpt")
SETTLING_S = 3600.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs; folders settle in `all_aged` only, however slow the machine is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(entries, "_SETTLING_S", SETTLING_S)
    home = tmp_path / "runs"
    for number in (1, 2, 3):
        write_run(home, day(number), [compared(), compared(GPT, speedup=0.9)])
    return home


@contextmanager
def all_aged() -> Iterator[None]:
    """Every file was last changed long ago."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries, "_SETTLING_S", -1.0)
        yield


def settle(home: Path) -> None:
    with all_aged(), Store.open(home) as store:
        store.refresh()
    assert unsettled(home) == []


def unsettled(home: Path) -> list[str]:
    with closing(sqlite3.connect(home / INDEX_FILE)) as connection:
        rows = connection.execute("SELECT id FROM runs WHERE settled = 0 ORDER BY id").fetchall()
    return [run for (run,) in rows]


def looks(home: Path) -> list[str]:
    with closing(sqlite3.connect(home / INDEX_FILE)) as connection:
        return [digest for (digest,) in connection.execute("SELECT digest FROM looks")]


def questions(home: Path, act: Callable[[Store], object]) -> list[str]:
    """The statements of SQL that something takes."""
    statements: list[str] = []
    with Store.open(home) as store:
        store._connection.set_trace_callback(statements.append)
        act(store)
        store._connection.set_trace_callback(None)
    return statements


def rewrite_unseen(path: Path, old: str, new: str) -> None:
    """Other text of the same length, inode and time: what two replaces in one tick can end with."""
    before = path.stat()
    text = path.read_text()
    assert old in text
    assert len(old) == len(new)
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        *(before.st_ino, before.st_size, before.st_mtime_ns),
    )


def test_two_replaces_within_one_tick_of_the_clock(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "_SETTLING_S", 60.0)
    add_note(home / day(1), "cold")
    with Store.open(home) as store:
        store.refresh()
        marks = marks_in(home)
        assert unsettled(home) == [day(1), day(2), day(3)]
        rewrite_unseen(home / day(1) / "run.json", "cold", "warm")
        assert marks_in(home) == marks
        assert store.refresh().changed == 1
        assert store.run(day(1)).notes == ("warm",)


def test_a_run_settles_with_what_it_holds_then(home: Path) -> None:
    """Rows of comparisons are not compared one by one, so settling writes them again."""
    with Store.open(home) as store:
        store.refresh()
    assert unsettled(home) == [day(1), day(2), day(3)]
    rewrite_unseen(home / day(2) / "comparisons.jsonl", '"gpt"', '"gpu"')
    settle(home)
    with Store.open(home) as store:
        assert len(store.comparisons(RunFilter(workload="models/gpu"))) == 1
        assert store.refresh().changed == 0


def test_what_a_settled_run_no_longer_shows_is_found_by_a_check(home: Path) -> None:
    settle(home)
    rows = home / day(2) / "comparisons.jsonl"
    rows.write_text("damaged\n" + rows.read_text())
    with Store.open(home) as store:
        found = store.refresh()
        assert (found.changed, found.damaged) == (0, 0)
        assert verify_run(home / day(2)).damage
        assert store.rebuild().damaged == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: add_note(folder, "later"),
        lambda folder: change_facts(folder, revision="another"),
        lambda folder: (folder / "run.json").unlink(),
        lambda folder: os.utime(folder / "run.json", ns=(1, 1)),
    ],
)
def test_changes_of_a_settled_run(home: Path, change: Callable[[Path], object]) -> None:
    settle(home)
    change(home / day(2))
    with Store.open(home) as store:
        found = store.refresh()
        assert (found.added, found.changed, found.gone, found.runs) == (0, 1, 0, 3)


def test_a_resumed_run(home: Path) -> None:
    settle(home)
    folder = home / day(3)
    facts = json.loads((folder / "run.json").read_bytes())
    with Store.open(home) as store:
        change_facts(folder, state="running", finished=None)
        store.refresh()
        assert store.run(day(3)).state == "running"
        assert unsettled(home) == [day(3)]
        append(folder, "models/bert")
        store.refresh()
        assert store.run(day(3)).comparisons == 3
        change_facts(folder, **facts)
        store.refresh()
    settle(home)
    with Store.open(home) as store:
        run = store.run(day(3))
        assert (run.state, run.comparisons) == ("finished", 3)


def append(folder: Path, workload: str) -> None:
    """One more comparison, as the writer of runs appends it."""
    suite, name = workload.split("/")
    with (folder / "comparisons.jsonl").open() as file:
        line = file.readline()
    line = line.replace(f'"{MATMUL.name}"', f'"{name}"').replace(f'"{MATMUL.suite}"', f'"{suite}"')
    with (folder / "comparisons.jsonl").open("a") as file:
        file.write(line)


def test_a_run_that_goes_on_is_seen_whenever_it_grows(home: Path) -> None:
    settle(home)
    writer = RunWriter.create(home / day(9), study=STUDY, command=[], machine={})
    writer.add_comparison(compared(verdict=Verdict.FASTER))
    writer.add_comparison(compared(GPT, verdict=Verdict.SLOWER))
    with Store.open(home) as store:
        store.refresh()
        with all_aged():
            assert store.refresh().changed == 0
        assert unsettled(home) == [day(9)]
        # The counts of its verdicts are as before, and so is its run.json.
        writer.add_comparison(compared(verdict=Verdict.SLOWER))
        writer.add_comparison(compared(GPT, verdict=Verdict.FASTER))
        assert store.refresh().changed == 1
        slower = store.comparisons(RunFilter(run=day(9), verdicts=(Verdict.SLOWER,)))
        assert [row.workload for row in slower] == [MATMUL.label]
        writer.finish("finished")
        store.refresh()
        assert store.run(day(9)).state == "finished"
    settle(home)


def test_a_copy_that_is_not_whole_yet(home: Path) -> None:
    """Copies have the old times of what they hold."""
    settle(home)
    source, copy = home / day(1), home / day(8)
    for path in (source / "run.json", source / "comparisons.jsonl"):
        os.utime(path, (1e9, 1e9))
    settle(home)
    shutil.copytree(source, copy)
    whole = (copy / "comparisons.jsonl").read_text()
    (copy / "comparisons.jsonl").write_text(whole[: len(whole) // 2 + 10])
    os.utime(copy / "comparisons.jsonl", (1e9, 1e9))
    with Store.open(home) as store:
        store.refresh()
        assert store.run(day(8)).comparisons == 1
        assert unsettled(home) == [day(8)]
    (copy / "comparisons.jsonl").write_text(whole)
    os.utime(copy / "comparisons.jsonl", (1e9, 1e9))
    settle(home)
    with Store.open(home) as store:
        assert store.run(day(8)).comparisons == 2


def test_a_refresh_without_changes_reads_unsettled_runs_only(home: Path) -> None:
    settle(home)
    statements = questions(home, lambda store: store.refresh())
    assert [text for text in statements if "FROM runs" in text and "settled = 0" not in text] == []
    assert not [text for text in statements if text.startswith(("BEGIN", "INSERT", "DELETE"))]
    add_note(home / day(2), "new")
    statements = questions(home, lambda store: store.refresh())
    assert "SELECT id, mark, rows_mark, settled FROM runs WHERE 1" in statements


def test_unsettled_runs_are_found_by_an_index(home: Path) -> None:
    settle(home)
    with closing(sqlite3.connect(home / INDEX_FILE)) as connection:
        for question in (
            "SELECT id, mark, rows_mark, settled FROM runs WHERE settled = 0",
            "SELECT count(*) FROM runs WHERE settled = 0 AND damage <> ''",
        ):
            (plan,) = connection.execute(f"EXPLAIN QUERY PLAN {question}").fetchall()
            assert "runs_unsettled" in plan[3]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_another_name_or_mark_is_another_digest(home: Path, number: int) -> None:
    marks = marks_in(home)
    assert digest_of(marks) == digest_of(dict(marks))
    name = day(number)
    other = {**marks, name: marks[name] + "0"}
    fewer = {run: mark for run, mark in marks.items() if run != name}
    renamed = {f"{run}0" if run == name else run: mark for run, mark in marks.items()}
    assert len({digest_of(each) for each in (marks, other, fewer, renamed, {})}) == 5


def test_a_stale_row_of_a_killed_process_is_repaired(home: Path) -> None:
    """It looked long ago, wrote what it had read, and never came to its end."""
    settle(home)
    old = entries_of(home / day(1))
    add_note(home / day(1), "new")
    settle(home)
    assert len(looks(home)) == 1
    with Store.open(home) as store:
        store.insert([(FullMark("old"), old)])
        assert looks(home) == []
        assert store.run(day(1)).notes == ()
        assert store.refresh().changed == 1
        assert store.run(day(1)).notes == ("new",)


def test_a_refresh_is_recorded_only_if_every_row_agrees(home: Path) -> None:
    settle(home)
    marks = marks_in(home)
    with Store.open(home) as store:
        store.insert([(FullMark("old"), entries_of(home / day(1)))])
        refreshing._save_scan(store._connection, marks, digest_of(marks))
        assert looks(home) == []
        store.insert([(full_mark(home / day(1)) or FullMark(""), entries_of(home / day(1)))])
        refreshing._save_scan(store._connection, marks, digest_of(marks))
        assert looks(home) == [digest_of(marks)]


def test_a_refresh_does_not_wait_for_a_lock(home: Path) -> None:
    settle(home)
    with closing(sqlite3.connect(home / INDEX_FILE, isolation_level=None)) as other:
        other.execute("DELETE FROM looks")
        other.execute("BEGIN IMMEDIATE")
        with Store.open(home) as store:
            began = time.monotonic()
            assert store.refresh().warnings == ()
            assert time.monotonic() - began < 20, "less than the busy timeout"
            assert store.place == home / INDEX_FILE
            (timeout,) = store._connection.execute("PRAGMA busy_timeout").fetchone()
            assert timeout == 30_000
        other.execute("ROLLBACK")
    assert looks(home) == []
    settle(home)
    assert len(looks(home)) == 1


def test_a_missing_and_a_removed_results_directory(tmp_path: Path, home: Path) -> None:
    assert marks_in(tmp_path / "nowhere") == {}
    settle(home)
    with Store.open(home) as store:
        for folder in home.iterdir():
            if folder.is_dir():
                shutil.rmtree(folder)
        found = store.refresh()
        assert (found.runs, found.gone) == (0, 3)
        assert store.runs(RunFilter()) == []
