"""The store: find every run of a results directory without opening its folder.

Run folders are the source of truth. The store creates, refreshes and repairs their index by
itself; the index may be deleted at any time, and where it cannot be written the same answers come
from memory.

A refresh handles new, changed, deleted and unsettled folders. When a scan finds the same as the
last one, only unsettled runs are checked: the digest of the scan is kept beside the rows, and
every change of a row deletes it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

from torchyard.core.records import nearest_hint
from torchyard.errors import NothingToDo, UsageError
from torchyard.results.directory import runs_home
from torchyard.results.index.database import (
    Unusable,
    copied_to_memory,
    forget_marks,
    in_memory,
    not_waiting,
    open_file,
    remove_damaged,
    writing,
)
from torchyard.results.index.entries import (
    Entries,
    delete_runs,
    entries_of,
    insert_runs,
    is_settled,
)
from torchyard.results.index.folders import FullMark, digest_of, full_mark, marks_in, places_for
from torchyard.results.index.queries import find_comparisons, find_points, find_runs, find_series
from torchyard.results.model import ComparisonEntry, Metric, RunEntry, Series, SeriesPoint, Wanted

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


T = TypeVar("T")


class Store:
    """The runs of one home. May be used from several threads, one at a time."""

    def __init__(self, home: Path, connection: sqlite3.Connection, place: Path | None) -> None:
        """`open` is the way to call this."""
        self.home = home
        self.place = place
        """The file of the index; None while it is in memory only."""
        self.warnings: list[str] = []
        self._connection = connection
        self._inode = _inode(place)
        self._lock = RLock()

    @classmethod
    def open(cls, home: Path | None = None) -> Store:
        """The store of a home, the runs' home when none is named. Makes nothing but the index."""
        home = (home or runs_home()).absolute()
        reasons = []
        for place in places_for(home):
            try:
                return cls(home, _opened(place), place)
            except Unusable as error:
                reasons.append(str(error))
        store = cls(home, in_memory(), None)
        if reasons:
            store.warnings.append(_unkept(reasons[0]))
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back; a second call does nothing."""
        self._connection.close()

    def refresh(self, progress: Progress | None = None) -> Refreshed:
        """Bring the index up to date with the folders: new, changed and gone ones."""
        started = time.monotonic()
        found = self._with_mending(lambda: self._refresh(progress))
        return replace(found, warnings=tuple(self.warnings), elapsed_s=time.monotonic() - started)

    def rebuild(self, progress: Progress | None = None) -> Refreshed:
        """Read all folders again; others see the old entries until each is replaced."""
        self._with_mending(lambda: forget_marks(self._connection))
        return self.refresh(progress)

    def insert(self, found: Sequence[tuple[FullMark, Entries]]) -> None:
        """Put entries in under their marks, replacing what was known of the same runs."""
        with self._lock, writing(self._connection) as cursor:
            insert_runs(cursor, found)

    def runs(self, wanted: Wanted) -> list[RunEntry]:
        """Newest first."""
        return self._with_mending(lambda: find_runs(self._connection, self.home, wanted))

    def comparisons(self, wanted: Wanted) -> list[ComparisonEntry]:
        """Newest first."""
        return self._with_mending(lambda: find_comparisons(self._connection, wanted))

    def series(self, wanted: Wanted, metric: Metric = "speedup") -> list[Series]:
        """What there is a history of."""
        return self._with_mending(lambda: find_series(self._connection, wanted, metric))

    def points(self, series: Series) -> list[SeriesPoint]:
        """The history, oldest first; wrong results and missing values have no point in it."""
        return self._with_mending(lambda: find_points(self._connection, series))

    def run(self, text: str) -> RunEntry:
        """A run by its id, the beginning of its id if no other begins so, its folder, or `latest`."""
        if text == "latest":
            return self._latest()
        folder = Path(text).expanduser()
        if text and folder.is_dir():
            return entries_of(folder.absolute()).run
        plain = text and not {"*", "?", "/"} & set(text)
        fitting = self.runs(Wanted(run=text)) if plain else []
        whole = [run for run in fitting if run.id == text]
        if len(whole or fitting) == 1:
            return (whole or fitting)[0]
        raise self._no_run(text, fitting)

    def _latest(self) -> RunEntry:
        for limit in (20, None):
            for run in self.runs(Wanted(limit=limit)):
                if not run.damage:
                    return run
        raise NothingToDo(
            "there is no run yet",
            why=f"looked in {self.home}",
            hint="make one with `torchyard bench`, or name a run's folder",
        )

    def _no_run(self, text: str, fitting: Sequence[RunEntry]) -> UsageError:
        if fitting:
            some = ", ".join(run.id for run in fitting[:3])
            return UsageError(
                f"{text!r} could be {len(fitting)} runs",
                why=f"{some}{', ...' if len(fitting) > 3 else ''} begin so",  # noqa: PLR2004
                hint="write more letters of the id",
            )
        newest = [run.id for run in self.runs(Wanted(limit=20))]
        return UsageError(
            f"there is no run {text!r}",
            why=f"it is neither a folder nor the id of a run in {self.home}",
            hint=nearest_hint(text, ["latest", *newest], what="run"),
        )

    def _refresh(self, progress: Progress | None) -> Refreshed:
        return refresh_index(self._connection, self.home, progress)

    def _with_mending(self, action: Callable[[], T]) -> T:
        """The action; where the file fails, again with a new file, and at last in memory."""
        with self._lock:
            try:
                return action()
            except sqlite3.OperationalError as error:
                self._leave_file(error)
            except sqlite3.DatabaseError as error:
                self._renew(error)
            return action()

    def _renew(self, error: sqlite3.Error) -> None:
        """Another file for one that is damaged or gone; read in, because it may be asked next."""
        if self.place is None:
            raise error
        self._connection.close()
        if _inode(self.place) == self._inode:
            remove_damaged(self.place)
        try:
            self._connection = _opened(self.place)
            self._inode = _inode(self.place)
        except Unusable as problem:
            self._connection, self.place = in_memory(), None
            self.warnings.append(_unkept(str(problem)))
        try:
            self._refresh(None)
        except sqlite3.Error as problem:
            self._leave_file(problem)

    def _leave_file(self, error: sqlite3.Error) -> None:
        """From now on in memory: the disk is full, read-only, or locked by somebody for long."""
        if self.place is None:
            raise error
        if _inode(self.place) != self._inode:
            # Another process has taken a damaged file away, and made or will make a new one.
            self._renew(error)
            return
        copy = copied_to_memory(self._connection)
        self._connection.close()
        self.warnings.append(_unkept(f"{self.place}: {error}"))
        self._connection, self.place = copy, None
        self._refresh(None)


def _opened(place: Path) -> sqlite3.Connection:
    try:
        return open_file(place)
    except sqlite3.DatabaseError:
        remove_damaged(place)
    try:
        return open_file(place)
    except sqlite3.DatabaseError as error:
        raise Unusable(f"{place}: {error}") from error


def _inode(place: Path | None) -> int | None:
    """Which file lies there now."""
    try:
        return place.stat().st_ino if place is not None else None
    except OSError:
        return None


def _unkept(why: str) -> str:
    return f"the index of runs is not kept, so every command reads all run folders again ({why})"
