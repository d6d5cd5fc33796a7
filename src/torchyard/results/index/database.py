"""The SQLite file of the index: its tables, and how it is opened, rebuilt or replaced by memory.

The index is a cache: a file of another version, or a damaged one, is rebuilt.

    runs          one row per run folder, readable or not
    lines         what a history is about: workload, baseline, candidate and machine
    builds        what a candidate was: torch version and revision
    comparisons   one row per comparison, ordered by history
    run_builds    which runs measured a build
    looks         digest of the last scan of all folders that agreed with every row of `runs`
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from torchyard.core.comparison import Verdict

APPLICATION: Final = 0x544F5259
"""SQLite application id ("TORY" in ASCII): other databases are never modified."""

VERSION: Final = 4
"""Incremented whenever the tables or their contents change."""

VERDICTS: Final[tuple[Verdict, ...]] = tuple(Verdict)
"""The state of a comparison (`Comparison.state`) is stored as an index into this tuple."""

TABLES: Final = ("runs", "lines", "builds", "comparisons", "run_builds", "looks")

# No STRICT: some supported distributions have an older SQLite (before 3.37).
CREATE: Final = (
    """CREATE TABLE runs (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        mark TEXT NOT NULL,
        rows_mark TEXT NOT NULL,
        settled INTEGER NOT NULL,
        moment INTEGER NOT NULL,
        study TEXT NOT NULL,
        state TEXT NOT NULL,
        started TEXT NOT NULL,
        finished TEXT,
        machine TEXT NOT NULL,
        machine_text TEXT NOT NULL,
        torch TEXT NOT NULL,
        revision TEXT NOT NULL,
        torchyard TEXT NOT NULL,
        verdicts TEXT NOT NULL,
        verdict_bits INTEGER NOT NULL,
        comparisons INTEGER NOT NULL,
        notes TEXT NOT NULL,
        damage TEXT NOT NULL
    )""",
    "CREATE INDEX runs_by_moment ON runs (moment, number)",
    "CREATE INDEX runs_unsettled ON runs (id) WHERE settled = 0",
    """CREATE TABLE lines (
        number INTEGER PRIMARY KEY,
        workload TEXT NOT NULL,
        baseline TEXT NOT NULL,
        candidate TEXT NOT NULL,
        machine TEXT NOT NULL,
        suite TEXT NOT NULL,
        mode TEXT NOT NULL,
        device TEXT NOT NULL,
        metric_bits INTEGER NOT NULL DEFAULT 0,
        UNIQUE (workload, baseline, candidate, machine, suite, mode, device)
    )""",
    """CREATE TABLE builds (
        number INTEGER PRIMARY KEY,
        revision TEXT NOT NULL,
        torch TEXT NOT NULL,
        UNIQUE (revision, torch)
    )""",
    # WITHOUT ROWID stores the table in key order, so that a history is contiguous.
    """CREATE TABLE comparisons (
        line INTEGER NOT NULL,
        moment INTEGER NOT NULL,
        run INTEGER NOT NULL,
        build INTEGER NOT NULL,
        verdict INTEGER NOT NULL,
        untrusted TEXT NOT NULL,
        launches INTEGER NOT NULL,
        speedup REAL,
        low REAL,
        high REAL,
        baseline_ns REAL,
        candidate_ns REAL,
        compile_s REAL,
        memory_bytes INTEGER,
        launch_sd REAL,
        pair_sd REAL,
        pairs INTEGER NOT NULL,
        PRIMARY KEY (line, moment, run)
    ) WITHOUT ROWID""",
    "CREATE INDEX comparisons_by_run ON comparisons (moment, run, verdict)",
    """CREATE TABLE run_builds (
        build INTEGER NOT NULL,
        run INTEGER NOT NULL,
        PRIMARY KEY (build, run)
    ) WITHOUT ROWID""",
    "CREATE INDEX run_builds_by_run ON run_builds (run)",
    "CREATE TABLE looks (digest TEXT NOT NULL)",
)


_WAIT_S: Final = 30.0
"""Time to wait for a lock; writers hold it for one batch of runs only."""


class Unusable(Exception):
    """The file cannot be used as index; the message has the reason."""


def open_file(path: Path) -> sqlite3.Connection:
    """Open the index in that file and create its tables; raise Unusable on failure."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise Unusable(f"{path}: {error}") from error
    try:
        _prepare(connection, path)
    except sqlite3.OperationalError as error:
        connection.close()
        raise Unusable(f"{path}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def in_memory() -> sqlite3.Connection:
    """Create an empty index in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    _create_tables(connection.cursor())
    return connection


def copied_to_memory(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Copy the index to memory; empty if it cannot be read."""
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        connection.backup(copy)
        if _is_current_index(copy):
            return copy
    except sqlite3.Error:
        pass
    copy.close()
    return in_memory()


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[sqlite3.Cursor]:
    """Run the block in one transaction."""
    with closing(connection.cursor()) as cursor:
        # Take the write lock immediately: two readers that both start to write would deadlock.
        cursor.execute("BEGIN IMMEDIATE")
        try:
            yield cursor
            cursor.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                cursor.execute("ROLLBACK")
            raise


@contextmanager
def not_waiting(connection: sqlite3.Connection) -> Iterator[None]:
    """Raise OperationalError immediately, instead of waiting, if another process holds a lock."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout = {round(_WAIT_S * 1000)}")


def forget_marks(connection: sqlite3.Connection) -> None:
    """Make the next refresh read every folder; the rows can still be queried."""
    with writing(connection) as cursor:
        tables = {name for (name,) in cursor.execute("SELECT name FROM sqlite_master")}
        if not tables.issuperset(TABLES):
            _replace_tables(cursor)
        cursor.execute("UPDATE runs SET mark = '', rows_mark = '', settled = 0")
        cursor.execute("DELETE FROM looks")
        cursor.execute("DELETE FROM comparisons WHERE run NOT IN (SELECT number FROM runs)")
        cursor.execute("DELETE FROM run_builds WHERE run NOT IN (SELECT number FROM runs)")


def remove_damaged(path: Path) -> None:
    """Remove a damaged file, unless another process already has."""
    try:
        before = path.stat().st_ino
        with path.with_name(path.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.stat().st_ino != before:
                return
            # The journal first: otherwise SQLite would apply it to the new file.
            for name in (f"{path.name}-journal", path.name):
                path.with_name(name).unlink(missing_ok=True)
    except OSError:
        return


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -65536")
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        connection.execute("PRAGMA journal_mode = DELETE")
    if _is_current_index(connection):
        return
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION:
        raise Unusable(f"{path} is not an index of Torchyard")
    with writing(connection) as cursor:
        # Another process may have created the tables while this one waited for the lock.
        if not _is_current_index(connection):
            _replace_tables(cursor)


def _is_current_index(connection: sqlite3.Connection) -> bool:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return bool(application == APPLICATION and version == VERSION)


def _replace_tables(cursor: sqlite3.Cursor) -> None:
    for table in TABLES:
        cursor.execute(f"DROP TABLE IF EXISTS {table}")
    _create_tables(cursor)


def _create_tables(cursor: sqlite3.Cursor) -> None:
    for statement in CREATE:
        cursor.execute(statement)
    cursor.execute(f"PRAGMA application_id = {APPLICATION}")
    cursor.execute(f"PRAGMA user_version = {VERSION}")
