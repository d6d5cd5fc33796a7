"""Query the index: filters as SQL conditions, results as lists of entries. Read-only.

Values are always passed as SQL parameters. SQLite cannot estimate which filter selects the fewest rows,
so both query plans are written out here (from the newest run, or through the matching lines), and
the cheaper one is used.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from torchyard.core.comparison import WITHOUT_SPEED, Verdict
from torchyard.core.study import FILE_SUITE
from torchyard.errors import UsageError
from torchyard.results.index.database import VERDICTS
from torchyard.results.index.entries import METRIC_COLUMNS, metric_bit, milliseconds, verdict_bits
from torchyard.results.model import (
    ComparisonEntry,
    LaunchVariance,
    Metric,
    RunEntry,
    RunFilter,
    Series,
    SeriesPoint,
)

# ruff: noqa: S608 -- only names of our own columns are put into statements; values are parameters


_SHORT_COMMIT: Final = 7
"""Minimum length of a revision that is treated as a prefix of a commit."""


@dataclass
class Conditions:
    """SQL conditions joined by AND, with their parameters."""

    texts: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, text: str, *values: Any) -> None:
        """Add a condition."""
        self.texts.append(text)
        self.values.extend(values)

    def add_pattern(self, column: str, text: str) -> None:
        """Require that the column equals the text, or matches it if it has * or ?."""
        if text:
            operator = "GLOB" if _is_pattern(text) else "="
            self.add(f"{column} {operator} ?", _glob(text) if operator == "GLOB" else text)

    def __bool__(self) -> bool:
        return bool(self.texts)

    def sql(self) -> str:
        """Return the expression for WHERE and ON; true if there are no conditions."""
        return " AND ".join(f"({text})" for text in self.texts) or "1"


def line_conditions(filters: RunFilter, *, machine: bool = True) -> Conditions:
    """Return the conditions on `lines l`."""
    conditions = Conditions()
    if filters.workload and not _is_pattern(filters.workload):
        # `models/gpt` matches every mode and batch size; a complete label matches only itself.
        patterns = [_glob(filters.workload) + " *"]
        if ".py" in filters.workload:  # a user's file, by the short name that tables show
            in_folder = f"{FILE_SUITE}/*/{_glob(filters.workload)}"
            patterns += [in_folder, f"{in_folder} *"]
        conditions.add(
            "l.workload = ?" + " OR l.workload GLOB ?" * len(patterns), filters.workload, *patterns
        )
    else:
        conditions.add_pattern("l.workload", filters.workload)
    names = ("suite", "mode", "device", "baseline", "candidate", *(("machine",) if machine else ()))
    for name in names:
        conditions.add_pattern(f"l.{name}", getattr(filters, name))
    return conditions


def run_conditions(filters: RunFilter) -> Conditions:
    """Return the conditions on `runs r`."""
    conditions = Conditions()
    if filters.run:
        whole = filters.run if _is_pattern(filters.run) else filters.run + "*"
        conditions.add("r.id GLOB ?", _glob(whole))
    for name in ("study", "state", "machine"):
        conditions.add_pattern(f"r.{name}", getattr(filters, name))
    if filters.since:
        conditions.add("r.moment >= ?", _moment(filters.since, "since"))
    if filters.until:
        conditions.add("r.moment < ?", _moment(filters.until, "until"))
    if filters.verdicts:
        conditions.add("r.verdict_bits & ?", verdict_bits(filters.verdicts))
    if filters.revision:
        of_builds, of_runs = build_conditions(filters), _revision("r.revision", filters.revision)
        conditions.add(
            "r.number IN (SELECT rb.run FROM builds b JOIN run_builds rb ON rb.build = b.number"
            f" WHERE {of_builds.sql()}) OR {of_runs.sql()}",
            *of_builds.values,
            *of_runs.values,
        )
    return conditions


def build_conditions(filters: RunFilter) -> Conditions:
    """Return the conditions on `builds b`."""
    return _revision("b.revision", filters.revision) if filters.revision else Conditions()


def with_verdict(column: str, verdicts: Sequence[Verdict]) -> Conditions:
    """Return the condition on a verdict column."""
    conditions = Conditions()
    if verdicts:
        marks = ", ".join("?" * len(verdicts))
        conditions.add(f"{column} IN ({marks})", *(VERDICTS.index(verdict) for verdict in verdicts))
    return conditions


def _revision(column: str, revision: str) -> Conditions:
    conditions = Conditions()
    if not _is_pattern(revision) and len(revision) >= _SHORT_COMMIT:
        conditions.add(f"{column} GLOB ?", _glob(revision) + "*")
    else:
        conditions.add_pattern(column, revision)
    return conditions


def _is_pattern(text: str) -> bool:
    return "*" in text or "?" in text


def _glob(text: str) -> str:
    """Escape [, which starts a character class in SQLite."""
    return text.replace("[", "[[]")


def _moment(text: str, what: str) -> int:
    try:
        return milliseconds(text)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{what}: {text!r} is not a date or time",
            why=str(error),
            hint="use 2025-01-31 or 2025-01-31T12:00:00Z",
        ) from error


_RUN_FIELDS: Final = [item.name for item in fields(RunEntry) if item.name != "folder"]
RUN_COLUMNS: Final = ", ".join(f"r.{name}" for name in _RUN_FIELDS)
_COMPARISON_COLUMNS: Final = (
    "r.id AS run, r.started, l.machine, b.revision, l.workload, l.suite, l.mode, l.device,"
    " l.baseline, l.candidate, c.verdict, c.speedup, c.low, c.high, c.launches, c.baseline_ns,"
    " c.candidate_ns, c.compile_s, c.memory_bytes, c.launch_sd, c.pair_sd, c.pairs, b.torch,"
    " c.untrusted"
)
_COMPARISON_FIELDS: Final = re.findall(r"(\w+)(?:,|$)", _COMPARISON_COLUMNS)
# CROSS JOIN keeps the order of tables. `h` is the index on runs: rows that do not match are skipped
# without reading the table.
_THROUGH_RUNS: Final = """
    FROM runs r
    CROSS JOIN comparisons h INDEXED BY comparisons_by_run
        ON h.moment = r.moment AND h.run = r.number
    CROSS JOIN lines l ON l.number = h.line
    CROSS JOIN comparisons c ON c.line = h.line AND c.moment = h.moment AND c.run = h.run
    CROSS JOIN builds b ON b.number = c.build"""
_THROUGH_LINES: Final = """
    FROM lines l
    CROSS JOIN comparisons c ON c.line = l.number
    CROSS JOIN runs r ON r.number = c.run
    CROSS JOIN builds b ON b.number = c.build"""
_WRONG: Final = VERDICTS.index(Verdict.WRONG)
_MIN_LAUNCHES_TO_POOL: Final = 3
_LARGEST_LOG_SD: Final = 20.0
"""A larger standard deviation of log speedups (a factor of 10^8) is not a measurement."""
_USUAL_ROWS: Final = 50
"""Default number of rows for the cost estimate of the query through runs."""


def find_runs(connection: sqlite3.Connection, home: Path, filters: RunFilter) -> list[RunEntry]:
    """Return runs, newest first; a filter on comparisons selects runs with a matching one."""
    runs, lines = run_conditions(filters), line_conditions(filters, machine=False)
    if lines:
        verdicts = with_verdict("c.verdict", filters.verdicts)
        inside = f"{lines.sql()} AND {verdicts.sql()}"
        if _lines_are_few(connection, lines, filters.limit):
            text = (
                "r.number IN (SELECT c.run FROM lines l CROSS JOIN comparisons c"
                f" ON c.line = l.number WHERE {inside})"
            )
        else:
            text = (
                "EXISTS (SELECT 1 FROM comparisons c INDEXED BY comparisons_by_run"
                " CROSS JOIN lines l ON l.number = c.line"
                f" WHERE c.moment = r.moment AND c.run = r.number AND {inside})"
            )
        runs.add(text, *lines.values, *verdicts.values)
    rows = connection.execute(
        f"SELECT {RUN_COLUMNS} FROM runs r WHERE {runs.sql()}"
        f" ORDER BY r.moment DESC, r.number DESC LIMIT {_limit(filters)}",
        runs.values,
    ).fetchall()
    return [run_of_row(home, row) for row in rows]


def find_comparisons(connection: sqlite3.Connection, filters: RunFilter) -> list[ComparisonEntry]:
    """Return comparisons, newest run first; within a run by workload and candidate."""
    runs, lines, builds = (
        run_conditions(filters),
        line_conditions(filters),
        build_conditions(filters),
    )
    if lines and _lines_are_few(connection, lines, filters.limit):
        tables, verdicts = _THROUGH_LINES, with_verdict("c.verdict", filters.verdicts)
    else:
        tables, verdicts = _THROUGH_RUNS, with_verdict("h.verdict", filters.verdicts)
    parts = (runs, lines, verdicts, builds)
    rows = connection.execute(
        f"SELECT {_COMPARISON_COLUMNS} {tables}"
        f" WHERE {' AND '.join(part.sql() for part in parts)}"
        " ORDER BY r.moment DESC, r.number DESC, l.workload, l.candidate, l.baseline"
        f" LIMIT {_limit(filters)}",
        [value for part in parts for value in part.values],
    ).fetchall()
    return [_comparison_of_row(row) for row in rows]


def find_series(connection: sqlite3.Connection, filters: RunFilter, metric: Metric) -> list[Series]:
    """Return the matching series, by workload, candidate, baseline and machine."""
    lines, runs = line_conditions(filters), run_conditions(filters)
    builds, verdicts = build_conditions(filters), with_verdict("c.verdict", filters.verdicts)
    inside = (runs, builds, verdicts)
    rows = connection.execute(
        "SELECT DISTINCT l.workload, l.baseline, l.candidate, l.machine FROM lines l"
        f" WHERE {lines.sql()} AND l.metric_bits & ? AND EXISTS ("
        " SELECT 1 FROM comparisons c CROSS JOIN runs r ON r.number = c.run"
        " CROSS JOIN builds b ON b.number = c.build"
        f" WHERE c.line = l.number AND c.{METRIC_COLUMNS[metric]} IS NOT NULL"
        f" AND c.verdict <> {_WRONG} AND {' AND '.join(part.sql() for part in inside)})"
        " ORDER BY l.workload, l.candidate, l.baseline, l.machine"
        f" LIMIT {_limit(filters)}",
        [*lines.values, metric_bit(metric), *(v for part in inside for v in part.values)],
    ).fetchall()
    names = ("workload", "baseline", "candidate", "machine")
    return [Series(metric=metric, **dict(zip(names, row, strict=True))) for row in rows]


def find_points(connection: sqlite3.Connection, series: Series) -> list[SeriesPoint]:
    """Return the points of a series, oldest first; without missing values and wrong results."""
    column = METRIC_COLUMNS[series.metric]
    interval = "c.low, c.high" if series.metric == "speedup" else "NULL, NULL"
    lines = connection.execute(
        "SELECT number FROM lines"
        " WHERE workload = ? AND baseline = ? AND candidate = ? AND machine = ?",
        (series.workload, series.baseline, series.candidate, series.machine),
    ).fetchall()
    if not lines:
        return []
    # Usually it is one line, whose comparisons are already in order: no sorting needed.
    condition = "c.line = ?" if len(lines) == 1 else f"c.line IN ({', '.join('?' * len(lines))})"
    rows = connection.execute(
        f"SELECT r.id, r.started, b.revision, c.{column}, {interval}, c.untrusted <> '' FROM comparisons c"
        " CROSS JOIN runs r ON r.number = c.run CROSS JOIN builds b ON b.number = c.build"
        f" WHERE {condition} AND c.{column} IS NOT NULL AND c.verdict <> {_WRONG}"
        " ORDER BY c.moment, c.run",
        [number for (number,) in lines],
    )
    return [
        SeriesPoint(run, started, revision, float(value), low, high, bool(untrusted))
        for run, started, revision, value, low, high, untrusted in rows
    ]


def find_launch_variances(connection: sqlite3.Connection) -> list[LaunchVariance]:
    """Return the pooled variances between launches (three or more) of each machine, device and suite."""
    verdicts = [VERDICTS.index(verdict) for verdict in VERDICTS if verdict in WITHOUT_SPEED]
    rows = connection.execute(
        "SELECT l.machine, l.device, l.suite, count(*), total(c.launches),"
        " total((c.launches - 1.0) * c.launch_sd * c.launch_sd) / total(c.launches - 1.0),"
        " total((c.launches - 1.0) * coalesce(c.pair_sd * c.pair_sd * c.launches / c.pairs, 0.0))"
        " / total(c.launches - 1.0)"
        " FROM lines l CROSS JOIN comparisons c ON c.line = l.number"
        " WHERE c.launches >= ? AND c.launch_sd < ? AND coalesce(c.pair_sd, 0.0) < ?"
        f" AND c.verdict NOT IN ({', '.join('?' * len(verdicts))})"
        " GROUP BY l.machine, l.device, l.suite ORDER BY l.machine, l.device, l.suite",
        (_MIN_LAUNCHES_TO_POOL, _LARGEST_LOG_SD, _LARGEST_LOG_SD, *verdicts),
    )
    names = [item.name for item in fields(LaunchVariance)]
    named = (dict(zip(names, row, strict=True)) for row in rows)
    return [LaunchVariance(**{**row, "launches": int(row["launches"])}) for row in named]


def run_of_row(home: Path, row: Sequence[Any]) -> RunEntry:
    """Convert a row of `RUN_COLUMNS` to an entry."""
    values = dict(zip(_RUN_FIELDS, row, strict=True))
    values["verdicts"] = _verdicts(values["verdicts"])
    values["notes"] = () if values["notes"] == "[]" else tuple(json.loads(values["notes"]))
    return RunEntry(folder=f"{home}/{values['id']}", **values)


@lru_cache(maxsize=4096)
def _verdicts(text: str) -> tuple[tuple[Verdict, int], ...]:
    """Decode the verdict counts of a run; cached, because texts repeat."""
    return tuple((Verdict(name), count) for name, count in json.loads(text))


def _comparison_of_row(row: Sequence[Any]) -> ComparisonEntry:
    values = dict(zip(_COMPARISON_FIELDS, row, strict=True))
    return ComparisonEntry(**{**values, "verdict": VERDICTS[values["verdict"]]})


def _lines_are_few(connection: sqlite3.Connection, lines: Conditions, limit: int | None) -> bool:
    """Return whether a query through the matching lines reads fewer rows than through runs."""
    matching, total, rows = connection.execute(
        f"SELECT count(CASE WHEN {lines.sql()} THEN 1 END), count(*),"
        " (SELECT total(comparisons) FROM runs) FROM lines l",
        lines.values,
    ).fetchone()
    if not matching:
        return True
    share = matching / total
    through_runs = rows if limit is None else min(rows, max(limit, _USUAL_ROWS) / share)
    return bool(share * rows <= through_runs)


def _limit(filters: RunFilter) -> int:
    return -1 if filters.limit is None else max(0, filters.limit)
