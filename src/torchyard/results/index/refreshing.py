"""Bringing the index up to date with the folders: new, changed, gone and unsettled ones.

When a look at the folders finds what the last one found, only unsettled runs are asked for: the
digest of that look is kept beside the rows, and every change of a row takes it away.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from torchyard.core.stored import RunEntry, Wanted
from torchyard.results.index.database import not_waiting, writing
from torchyard.results.index.entries import Entries, entries_of
from torchyard.results.index.folders import FullMark, digest_of, full_mark, marks_in
from torchyard.results.index.questions import find_runs
from torchyard.results.index.rows import delete_runs, insert_runs, is_settled

__all__ = ["Progress", "Refreshed", "refresh_index"]

Progress = Callable[[int, int], None]
"""Told how many of how many folders are read."""

_BATCH_S: Final = 0.5
"""How long folders are read before they are written: what a kill loses, and how seldom others wait."""


class _Known(NamedTuple):
    mark: str
    rows_mark: str
    settled: int


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """What a refresh found."""

    runs: int = 0
    added: int = 0
    changed: int = 0
    gone: int = 0
    damaged: int = 0
    warnings: tuple[str, ...] = ()
    """Why the index could not be kept; the answers are right all the same."""
    elapsed_s: float = 0.0


def refresh_index(
    connection: sqlite3.Connection, home: Path, progress: Progress | None
) -> Refreshed:
    """One look at the folders, and everything read that is not known as it is."""
    marks = marks_in(home)
    digest = digest_of(marks)
    agreed = _agrees(connection, digest)
    known = _known(connection, "settled = 0" if agreed else "1")
    gone = [run for run in known if run not in marks]
    if gone:
        with writing(connection) as cursor:
            delete_runs(cursor, gone)
    if agreed:
        unread = sorted(known)
    else:
        unread = sorted(run for run, mark in marks.items() if not _is_known(known.get(run), mark))
    added, changed = _read(connection, home, known, unread, progress)
    if not _agrees(connection, digest):
        _keep_look(connection, marks, digest)
    (damaged,) = connection.execute(
        "SELECT count(*) FROM runs WHERE settled = 0 AND damage <> ''"
    ).fetchone()
    return Refreshed(runs=len(marks), added=added, changed=changed, gone=len(gone), damaged=damaged)


def _agrees(connection: sqlite3.Connection, digest: str) -> bool:
    found = connection.execute("SELECT 1 FROM looks WHERE digest = ?", (digest,)).fetchone()
    return found is not None


def _known(connection: sqlite3.Connection, condition: str) -> dict[str, _Known]:
    rows = connection.execute(f"SELECT id, mark, rows_mark, settled FROM runs WHERE {condition}")  # noqa: S608
    return {run: _Known(*rest) for run, *rest in rows}


def _is_known(known: _Known | None, mark: str) -> bool:
    return known is not None and known.settled == 1 and known.mark == mark


def _read(
    connection: sqlite3.Connection,
    home: Path,
    known: dict[str, _Known],
    unread: list[str],
    progress: Progress | None,
) -> tuple[int, int]:
    """How many runs were added, and how many had changed."""
    added = changed = 0
    batch: list[tuple[FullMark, Entries]] = []
    began = time.monotonic()
    for number, run in enumerate(unread, start=1):
        # The mark first: a folder that changes while it is read is found changed the next time.
        mark = full_mark(home / run)
        entries = entries_of(home / run)
        if mark is None or (entries.run.damage and full_mark(home / run) is None):
            continue  # removed in this moment: the next refresh forgets it
        if run not in known:
            added += 1
        elif known[run][:2] != mark[:2] or entries.run not in _entry(connection, home, run):
            changed += 1
        elif not is_settled(mark, entries.run):
            continue
        batch.append((mark, entries))
        if number == len(unread) or time.monotonic() - began > _BATCH_S:
            _insert(connection, batch)
            began = time.monotonic()
            if progress is not None:
                progress(number, len(unread))
    _insert(connection, batch)
    return added, changed


def _insert(connection: sqlite3.Connection, batch: list[tuple[FullMark, Entries]]) -> None:
    if batch:
        with writing(connection) as cursor:
            insert_runs(cursor, batch)
        batch.clear()


def _entry(connection: sqlite3.Connection, home: Path, run: str) -> list[RunEntry]:
    found = find_runs(connection, home, Wanted(run=run))
    return [entry for entry in found if entry.id == run]


def _keep_look(connection: sqlite3.Connection, marks: dict[str, str], digest: str) -> None:
    """Note the look, if every row agrees with it: another process may have changed some since."""
    # It only saves time at the next refresh: nobody waits for it, and no warning comes of it.
    with suppress(sqlite3.OperationalError), not_waiting(connection), writing(connection) as cursor:
        rows = cursor.execute("SELECT id, mark FROM runs").fetchall()
        if len(rows) == len(marks) and all(marks.get(run) == mark for run, mark in rows):
            cursor.execute("DELETE FROM looks")
            cursor.execute("INSERT INTO looks VALUES (?)", (digest,))
