"""The file of the index: opened, made anew when it is of another version or damaged, or left out.

Knows tables by name, and nothing of what is in them.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from torchyard.results.index.schema import APPLICATION, CREATE, TABLES, VERSION

__all__ = [
    "Unusable",
    "copied_to_memory",
    "forget_marks",
    "in_memory",
    "not_waiting",
    "open_file",
    "remove_damaged",
    "writing",
]

_WAIT_S: Final = 30.0
"""How long to wait for another process that writes; it holds the lock for a batch of runs only."""


class Unusable(Exception):
    """This file cannot be the index now; the text says why, for people."""


def open_file(path: Path) -> sqlite3.Connection:
    """The index in that file, with its tables; raises Unusable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise Unusable(f"{path}: {error}") from error
    try:
        _settle(connection, path)
    except sqlite3.OperationalError as error:
        connection.close()
        raise Unusable(f"{path}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def in_memory() -> sqlite3.Connection:
    """An empty index that ends with this process."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    _make(connection.cursor())
    return connection


def copied_to_memory(connection: sqlite3.Connection) -> sqlite3.Connection:
    """What the file holds, where it can be changed; empty when it cannot be read."""
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        connection.backup(copy)
        if _is_ours(copy):
            return copy
    except sqlite3.Error:
        pass
    copy.close()
    return in_memory()


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[sqlite3.Cursor]:
    """One change as a whole: others see all of it or nothing, also after a kill."""
    with closing(connection.cursor()) as cursor:
        # The lock is taken at once: two that had both begun to read could never go on to write.
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
    """Inside, a lock that another process holds is an OperationalError at once."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout = {round(_WAIT_S * 1000)}")


def forget_marks(connection: sqlite3.Connection) -> None:
    """Have the next refresh read every folder, while the rows still answer questions."""
    with writing(connection) as cursor:
        tables = {name for (name,) in cursor.execute("SELECT name FROM sqlite_master")}
        if not tables.issuperset(TABLES):
            _replace_tables(cursor)
        cursor.execute("UPDATE runs SET mark = '', rows_mark = '', settled = 0")
        cursor.execute("DELETE FROM looks")
        cursor.execute("DELETE FROM comparisons WHERE run NOT IN (SELECT number FROM runs)")
        cursor.execute("DELETE FROM run_builds WHERE run NOT IN (SELECT number FROM runs)")


def remove_damaged(path: Path) -> None:
    """Take away a file that SQLite calls damaged, unless another process has done so already."""
    try:
        before = path.stat().st_ino
        with path.with_name(path.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.stat().st_ino != before:
                return
            # The journal first: alone it would be taken for the new file's.
            for name in (f"{path.name}-journal", path.name):
                path.with_name(name).unlink(missing_ok=True)
    except OSError:
        return


def _settle(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -65536")
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        connection.execute("PRAGMA journal_mode = DELETE")
    if _is_ours(connection):
        return
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION:
        raise Unusable(f"{path} is a database of something else")
    with writing(connection) as cursor:
        # Another process may have made the tables while this one waited for the lock.
        if not _is_ours(connection):
            _replace_tables(cursor)


def _is_ours(connection: sqlite3.Connection) -> bool:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return bool(application == APPLICATION and version == VERSION)


def _replace_tables(cursor: sqlite3.Cursor) -> None:
    for table in TABLES:
        cursor.execute(f"DROP TABLE IF EXISTS {table}")
    _make(cursor)


def _make(cursor: sqlite3.Cursor) -> None:
    for statement in CREATE:
        cursor.execute(statement)
    cursor.execute(f"PRAGMA application_id = {APPLICATION}")
    cursor.execute(f"PRAGMA user_version = {VERSION}")
