"""The store: every run of a home, found without opening its folder.

Run folders are the truth. The store keeps an index of them, which it makes and mends by itself:
it may be removed at any time, and where it cannot be kept the same answers come from memory.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Self, TypeVar

from torchyard.core.records import nearest_hint
from torchyard.core.stored import (
    ComparisonEntry,
    Metric,
    RunEntry,
    Series,
    SeriesPoint,
    Wanted,
)
from torchyard.errors import NothingToDo, UsageError
from torchyard.results.index.database import (
    Unusable,
    copied_to_memory,
    forget_marks,
    in_memory,
    open_file,
    remove_damaged,
    writing,
)
from torchyard.results.index.entries import Entries, entries_of
from torchyard.results.index.folders import FullMark
from torchyard.results.index.place import places_for
from torchyard.results.index.questions import (
    find_comparisons,
    find_points,
    find_runs,
    find_series,
)
from torchyard.results.index.refreshing import Progress, Refreshed, refresh_index
from torchyard.results.index.rows import insert_runs
from torchyard.results.run_home import runs_home

__all__ = ["Store"]

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
