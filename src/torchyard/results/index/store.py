"""The store: query the runs of a results directory without opening their folders.

The store creates, refreshes and repairs the index automatically, and keeps it in memory if it cannot be written. If a
scan of the folders gives the digest that is stored with the rows, only unsettled runs are checked.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from typing import Final, NamedTuple, Self, TypeVar

from torchyard.core.records import nearest_hint
from torchyard.errors import NothingToDo, UsageError
from torchyard.results import model
from torchyard.results.directory import runs_home
from torchyard.results.index import database
from torchyard.results.index.entries import (
    Entries,
    FullMark,
    delete_runs,
    digest_of,
    entries_of,
    full_mark,
    insert_runs,
    is_settled,
    marks_in,
    places_for,
)
from torchyard.results.index.queries import (
    find_comparisons,
    find_launch_variances,
    find_points,
    find_runs,
    find_series,
)

Progress = Callable[[int, int], None]
"""Progress callback: folders read, and the total."""

_BATCH_S: Final = 0.5
"""Time for which folders are read before they are written to the index in one transaction."""


class _IndexedMark(NamedTuple):
    mark: str
    rows_mark: str
    settled: int


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """The result of a refresh."""

    runs: int = 0
    added: int = 0
    changed: int = 0
    gone: int = 0
    damaged: int = 0
    warnings: tuple[str, ...] = ()
    """Why the index could not be stored; query results are still correct."""
    elapsed_s: float = 0.0


def refresh_index(
    connection: sqlite3.Connection, home: Path, progress: Progress | None
) -> Refreshed:
    """Scan the folders and read those that are new or changed."""
    marks = marks_in(home)
    digest = digest_of(marks)
    agreed = _agrees(connection, digest)
    indexed = _indexed_marks(connection, "settled = 0" if agreed else "1")
    removed = [run for run in indexed if run not in marks]
    if removed:
        with database.writing(connection) as cursor:
            delete_runs(cursor, removed)
    if agreed:
        unread = sorted(indexed)
    else:
        current = {run: one.mark for run, one in indexed.items() if one.settled == 1}
        unread = sorted(run for run, mark in marks.items() if current.get(run) != mark)
    added, changed = _read(connection, home, indexed, unread, progress)
    if not _agrees(connection, digest):
        _save_scan(connection, marks, digest)
    (damaged,) = connection.execute(
        "SELECT count(*) FROM runs WHERE settled = 0 AND damage <> ''"
    ).fetchone()
    return Refreshed(
        runs=len(marks), added=added, changed=changed, gone=len(removed), damaged=damaged
    )


def _agrees(connection: sqlite3.Connection, digest: str) -> bool:
    row = connection.execute("SELECT 1 FROM looks WHERE digest = ?", (digest,)).fetchone()
    return row is not None


def _indexed_marks(connection: sqlite3.Connection, condition: str) -> dict[str, _IndexedMark]:
    rows = connection.execute(f"SELECT id, mark, rows_mark, settled FROM runs WHERE {condition}")  # noqa: S608
    return {run: _IndexedMark(*rest) for run, *rest in rows}


def _read(
    connection: sqlite3.Connection,
    home: Path,
    indexed: dict[str, _IndexedMark],
    unread: list[str],
    progress: Progress | None,
) -> tuple[int, int]:
    """Read folders into the index; return how many runs were added and how many had changed."""
    added = changed = 0
    batch: list[tuple[FullMark, Entries]] = []
    began = time.monotonic()
    for number, run in enumerate(unread, start=1):
        # The mark first: a folder that changes while it is read is read again next time.
        mark = full_mark(home / run)
        entries = entries_of(home / run)
        if mark is None or (entries.run.damage and full_mark(home / run) is None):
            continue  # just deleted: the next refresh removes it
        if run not in indexed:
            added += 1
        elif indexed[run][:2] != mark[:2] or entries.run not in find_runs(
            connection, home, model.RunFilter(run=run)
        ):
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
        with database.writing(connection) as cursor:
            insert_runs(cursor, batch)
        batch.clear()


def _save_scan(connection: sqlite3.Connection, marks: dict[str, str], digest: str) -> None:
    """Store the digest of the scan, unless another process has changed rows since."""
    # It only saves time at the next refresh, so a lock is not waited for and errors are ignored.
    with (
        suppress(sqlite3.OperationalError),
        database.not_waiting(connection),
        database.writing(connection) as cursor,
    ):
        rows = cursor.execute("SELECT id, mark FROM runs").fetchall()
        if len(rows) == len(marks) and all(marks.get(run) == mark for run, mark in rows):
            cursor.execute("DELETE FROM looks")
            cursor.execute("INSERT INTO looks VALUES (?)", (digest,))


T = TypeVar("T")


class Store:
    """The runs of one results directory. May be used from several threads, one at a time."""

    def __init__(self, home: Path, connection: sqlite3.Connection, place: Path | None) -> None:
        """Use `open` instead."""
        self.home = home
        self.place = place
        """The file of the index; None if it is in memory only."""
        self.warnings: list[str] = []
        self._connection = connection
        self._inode = _inode(place)
        self._lock = RLock()

    @classmethod
    def open(cls, home: Path | None = None) -> Store:
        """Open the store of a results directory; creates nothing but the index."""
        home = (home or runs_home()).absolute()
        reasons = []
        for place in places_for(home):
            try:
                return cls(home, _opened(place), place)
            except database.Unusable as error:
                reasons.append(str(error))
        store = cls(home, database.in_memory(), None)
        if reasons:
            store.warnings.append(_not_stored(reasons[0]))
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the index; a second call does nothing."""
        self._connection.close()

    def refresh(self, progress: Progress | None = None) -> Refreshed:
        """Update the index for new, changed and deleted folders."""
        started = time.monotonic()
        result = self._with_repair(lambda: self._refresh(progress))
        return replace(result, warnings=tuple(self.warnings), elapsed_s=time.monotonic() - started)

    def rebuild(self, progress: Progress | None = None) -> Refreshed:
        """Read all folders again; other processes see the old entries until each is replaced."""
        self._with_repair(lambda: database.forget_marks(self._connection))
        return self.refresh(progress)

    def insert(self, runs: Sequence[tuple[FullMark, Entries]]) -> None:
        """Insert entries with their marks, replacing earlier entries of the same runs."""
        with self._lock, database.writing(self._connection) as cursor:
            insert_runs(cursor, runs)

    def runs(self, filters: model.RunFilter) -> list[model.RunEntry]:
        """Return the matching runs, newest first."""
        return self._with_repair(lambda: find_runs(self._connection, self.home, filters))

    def comparisons(self, filters: model.RunFilter) -> list[model.ComparisonEntry]:
        """Return the matching comparisons, newest first."""
        return self._with_repair(lambda: find_comparisons(self._connection, filters))

    def series(
        self, filters: model.RunFilter, metric: model.Metric = "speedup"
    ) -> list[model.Series]:
        """Return the matching series."""
        return self._with_repair(lambda: find_series(self._connection, filters, metric))

    def points(self, series: model.Series) -> list[model.SeriesPoint]:
        """Return the points of a series, oldest first, without wrong results and missing values."""
        return self._with_repair(lambda: find_points(self._connection, series))

    def launch_variances(self) -> list[model.LaunchVariance]:
        """Return the pooled variances between launches of each machine, device and suite."""
        return self._with_repair(lambda: find_launch_variances(self._connection))

    def run(self, text: str) -> model.RunEntry:
        """Return a run by its id, a unique prefix of it, its folder, or `latest`."""
        if text == "latest":
            return self._latest()
        folder = Path(text).expanduser()
        if text and folder.is_dir():
            return entries_of(folder.absolute()).run
        plain = text and not {"*", "?", "/"} & set(text)
        matching = self.runs(model.RunFilter(run=text)) if plain else []
        exact = [run for run in matching if run.id == text]
        if len(exact or matching) == 1:
            return (exact or matching)[0]
        raise self._no_run(text, matching)

    def _latest(self) -> model.RunEntry:
        for limit in (20, None):
            for run in self.runs(model.RunFilter(limit=limit)):
                if not run.damage:
                    return run
        raise NothingToDo(
            "there is no run yet",
            why=f"{self.home} contains no run",
            hint="start one with `torchyard bench`, or name a run folder",
        )

    def _no_run(self, text: str, matching: Sequence[model.RunEntry]) -> UsageError:
        if matching:
            some = ", ".join(run.id for run in matching[:3])
            return UsageError(
                f"{text!r} is ambiguous: it matches {len(matching)} runs",
                why=f"{some}{', ...' if len(matching) > 3 else ''} start with it",  # noqa: PLR2004
                hint="use more letters of the id",
            )
        newest = [run.id for run in self.runs(model.RunFilter(limit=20))]
        nearest = nearest_hint(text, ["latest", *newest])
        return UsageError(
            f"there is no run {text!r}",
            why=f"it is neither a folder nor the id of a run in {self.home}",
            hint=nearest
            if nearest.startswith("did")
            else "`torchyard results list` lists the runs; `latest` is the newest",
        )

    def _refresh(self, progress: Progress | None) -> Refreshed:
        return refresh_index(self._connection, self.home, progress)

    def _with_repair(self, action: Callable[[], T]) -> T:
        """Run the action; on a database error, retry with a new file or in memory."""
        with self._lock:
            try:
                return action()
            except sqlite3.OperationalError as error:
                self._move_to_memory(error)
            except sqlite3.DatabaseError as error:
                self._renew(error)
            return action()

    def _renew(self, error: sqlite3.Error) -> None:
        """Replace a damaged or missing file by a new, refreshed one."""
        if self.place is None:
            raise error
        self._connection.close()
        if _inode(self.place) == self._inode:
            database.remove_damaged(self.place)
        try:
            self._connection = _opened(self.place)
            self._inode = _inode(self.place)
        except database.Unusable as problem:
            self._connection, self.place = database.in_memory(), None
            self.warnings.append(_not_stored(str(problem)))
        try:
            self._refresh(None)
        except sqlite3.Error as problem:
            self._move_to_memory(problem)

    def _move_to_memory(self, error: sqlite3.Error) -> None:
        """Continue in memory: the disk is full, read-only, or locked for too long."""
        if self.place is None:
            raise error
        if _inode(self.place) != self._inode:
            # Another process has removed a damaged file and creates a new one.
            self._renew(error)
            return
        copy = database.copied_to_memory(self._connection)
        self._connection.close()
        self.warnings.append(_not_stored(f"{self.place}: {error}"))
        self._connection, self.place = copy, None
        self._refresh(None)


def _opened(place: Path) -> sqlite3.Connection:
    try:
        return database.open_file(place)
    except sqlite3.DatabaseError:
        database.remove_damaged(place)
    try:
        return database.open_file(place)
    except sqlite3.DatabaseError as error:
        raise database.Unusable(f"{place}: {error}") from error


def _inode(place: Path | None) -> int | None:
    """Return the inode of the file; None if there is none."""
    try:
        return place.stat().st_ino if place is not None else None
    except OSError:
        return None


def _not_stored(why: str) -> str:
    return f"the index of runs cannot be stored, so every command reads all run folders ({why})"
