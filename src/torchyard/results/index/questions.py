"""Questions to the tables, as lists of entries. Changes nothing.

SQLite would have to guess which filter leaves the fewest rows; here both ways to go are written
down, through runs from the newest on or through the lines that fit, and the shorter one is taken.
"""

# ruff: noqa: S608 -- only names of our own columns are put into statements; values are parameters

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from torchyard.core.comparison import Verdict
from torchyard.core.stored import (
    ComparisonEntry,
    Metric,
    RunEntry,
    Series,
    SeriesPoint,
    Wanted,
)
from torchyard.results.index.conditions import (
    Conditions,
    build_conditions,
    line_conditions,
    run_conditions,
    with_verdict,
)
from torchyard.results.index.rows import METRIC_COLUMNS, metric_bit
from torchyard.results.index.schema import VERDICTS

__all__ = ["find_comparisons", "find_points", "find_runs", "find_series"]

RUN_COLUMNS: Final = (
    "r.id, r.study, r.state, r.started, r.finished, r.machine, r.machine_text, r.torch,"
    " r.revision, r.torchyard, r.verdicts, r.notes, r.damage"
)
_COMPARISON_COLUMNS: Final = (
    "r.id, r.started, l.machine, b.revision, l.workload, l.suite, l.mode, l.device, l.baseline,"
    " l.candidate, c.verdict, c.speedup, c.low, c.high, c.launches, c.baseline_ns, c.candidate_ns,"
    " c.compile_s, c.memory_bytes, b.torch, c.untrusted"
)
# CROSS JOIN keeps the order of tables as written. `h` is the small index on runs alone: rows that
# do not fit are passed over without a look into the table.
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
_USUAL_ROWS: Final = 50
"""A screenful: how many rows through runs are weighed against all rows of the lines that fit."""


def find_runs(connection: sqlite3.Connection, home: Path, wanted: Wanted) -> list[RunEntry]:
    """Newest first. A filter of comparisons chooses the runs that have one such comparison."""
    runs, lines = run_conditions(wanted), line_conditions(wanted, machine=False)
    if lines:
        verdicts = with_verdict("c.verdict", wanted.verdicts)
        inside = f"{lines.sql()} AND {verdicts.sql()}"
        if _lines_are_few(connection, lines, wanted.limit):
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
        f" ORDER BY r.moment DESC, r.number DESC LIMIT {_limit(wanted)}",
        runs.values,
    ).fetchall()
    return [run_of_row(home, row) for row in rows]


def find_comparisons(connection: sqlite3.Connection, wanted: Wanted) -> list[ComparisonEntry]:
    """Newest run first; inside a run by workload and candidate."""
    runs, lines, builds = run_conditions(wanted), line_conditions(wanted), build_conditions(wanted)
    if lines and _lines_are_few(connection, lines, wanted.limit):
        tables, verdicts = _THROUGH_LINES, with_verdict("c.verdict", wanted.verdicts)
    else:
        tables, verdicts = _THROUGH_RUNS, with_verdict("h.verdict", wanted.verdicts)
    parts = (runs, lines, verdicts, builds)
    rows = connection.execute(
        f"SELECT {_COMPARISON_COLUMNS} {tables}"
        f" WHERE {' AND '.join(part.sql() for part in parts)}"
        " ORDER BY r.moment DESC, r.number DESC, l.workload, l.candidate, l.baseline"
        f" LIMIT {_limit(wanted)}",
        [value for part in parts for value in part.values],
    ).fetchall()
    return [_comparison_of_row(row) for row in rows]


def find_series(connection: sqlite3.Connection, wanted: Wanted, metric: Metric) -> list[Series]:
    """What there is a history of, by workload, candidate, baseline and machine."""
    lines, runs = line_conditions(wanted), run_conditions(wanted)
    builds, verdicts = build_conditions(wanted), with_verdict("c.verdict", wanted.verdicts)
    inside = (runs, builds, verdicts)
    rows = connection.execute(
        "SELECT DISTINCT l.workload, l.baseline, l.candidate, l.machine FROM lines l"
        f" WHERE {lines.sql()} AND l.metric_bits & ? AND EXISTS ("
        " SELECT 1 FROM comparisons c CROSS JOIN runs r ON r.number = c.run"
        " CROSS JOIN builds b ON b.number = c.build"
        f" WHERE c.line = l.number AND c.{METRIC_COLUMNS[metric]} IS NOT NULL"
        f" AND c.verdict <> {_WRONG} AND {' AND '.join(part.sql() for part in inside)})"
        " ORDER BY l.workload, l.candidate, l.baseline, l.machine"
        f" LIMIT {_limit(wanted)}",
        [*lines.values, metric_bit(metric), *(v for part in inside for v in part.values)],
    ).fetchall()
    return [
        Series(
            workload=workload, baseline=baseline, candidate=candidate, machine=where, metric=metric
        )
        for workload, baseline, candidate, where in rows
    ]


def find_points(connection: sqlite3.Connection, series: Series) -> list[SeriesPoint]:
    """Oldest first. Runs without the value, or whose results were wrong, have no point."""
    column = METRIC_COLUMNS[series.metric]
    interval = "c.low, c.high" if series.metric == "speedup" else "NULL, NULL"
    lines = connection.execute(
        "SELECT number FROM lines"
        " WHERE workload = ? AND baseline = ? AND candidate = ? AND machine = ?",
        (series.workload, series.baseline, series.candidate, series.machine),
    ).fetchall()
    if not lines:
        return []
    # Nearly always it is one line, whose comparisons lie in the wanted order: nothing to sort.
    fits = "c.line = ?" if len(lines) == 1 else f"c.line IN ({', '.join('?' * len(lines))})"
    rows = connection.execute(
        f"SELECT r.id, r.started, b.revision, c.{column}, {interval}, c.untrusted <> '' FROM comparisons c"
        " CROSS JOIN runs r ON r.number = c.run CROSS JOIN builds b ON b.number = c.build"
        f" WHERE {fits} AND c.{column} IS NOT NULL AND c.verdict <> {_WRONG}"
        " ORDER BY c.moment, c.run",
        [number for (number,) in lines],
    )
    return [
        SeriesPoint(run, started, revision, float(value), low, high, bool(untrusted))
        for run, started, revision, value, low, high, untrusted in rows
    ]


def run_of_row(home: Path, row: Sequence[Any]) -> RunEntry:
    """The entry of a row of `RUN_COLUMNS`."""
    return RunEntry(
        id=row[0],
        folder=f"{home}/{row[0]}",
        study=row[1],
        state=row[2],
        started=row[3],
        finished=row[4],
        machine=row[5],
        machine_text=row[6],
        torch=row[7],
        revision=row[8],
        torchyard=row[9],
        verdicts=_verdicts(row[10]),
        notes=() if row[11] == "[]" else tuple(json.loads(row[11])),
        damage=row[12],
    )


@lru_cache(maxsize=4096)
def _verdicts(text: str) -> tuple[tuple[Verdict, int], ...]:
    """Counts of a run; the same texts come again and again."""
    return tuple((Verdict(name), count) for name, count in json.loads(text))


def _comparison_of_row(row: Sequence[Any]) -> ComparisonEntry:
    return ComparisonEntry(
        run=row[0],
        started=row[1],
        machine=row[2],
        revision=row[3],
        workload=row[4],
        suite=row[5],
        mode=row[6],
        device=row[7],
        baseline=row[8],
        candidate=row[9],
        verdict=VERDICTS[row[10]],
        speedup=row[11],
        low=row[12],
        high=row[13],
        launches=row[14],
        baseline_ns=row[15],
        candidate_ns=row[16],
        compile_s=row[17],
        memory_bytes=row[18],
        torch=row[19],
        untrusted=row[20],
    )


def _lines_are_few(connection: sqlite3.Connection, lines: Conditions, limit: int | None) -> bool:
    """Whether the rows of the lines that fit are fewer than those on the way through runs."""
    fitting, known, rows = connection.execute(
        f"SELECT count(CASE WHEN {lines.sql()} THEN 1 END), count(*),"
        " (SELECT total(comparisons) FROM runs) FROM lines l",
        lines.values,
    ).fetchone()
    if not fitting:
        return True
    share = fitting / known
    through_runs = rows if limit is None else min(rows, max(limit, _USUAL_ROWS) / share)
    return bool(share * rows <= through_runs)


def _limit(wanted: Wanted) -> int:
    return -1 if wanted.limit is None else max(0, wanted.limit)
