"""Putting entries into the tables and taking them out. Callers hold the transaction."""

# ruff: noqa: S608 -- only names of our own columns are put into statements; values are parameters

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

from torchyard.core.stored import METRICS, ComparisonEntry, Metric, RunEntry
from torchyard.results.index.entries import Entries, milliseconds
from torchyard.results.index.folders import FullMark
from torchyard.results.index.schema import VERDICTS

__all__ = [
    "METRIC_COLUMNS",
    "delete_runs",
    "insert_runs",
    "is_settled",
    "metric_bit",
    "verdict_bits",
]

METRIC_COLUMNS: Final[dict[Metric, str]] = {
    "speedup": "speedup",
    "time": "candidate_ns",
    "compile": "compile_s",
    "memory": "memory_bytes",
}
_PLACES: Final = {verdict: place for place, verdict in enumerate(VERDICTS)}
_LARGEST: Final = 2**63 - 1


def metric_bit(metric: Metric) -> int:
    """The bit that says that a line has values of the metric."""
    return 1 << METRICS.index(metric)


def verdict_bits(verdicts: Iterable[str]) -> int:
    """The bits of the verdicts."""
    wanted = set(verdicts)
    return sum(1 << place for verdict, place in _PLACES.items() if verdict in wanted)


def is_settled(mark: FullMark, run: RunEntry) -> bool:
    """Whether another change of the folder would show in its `run.json`."""
    # A running run may have died, a damaged one been mended by rights or a newer Torchyard.
    return mark.aged and run.state != "running" and not run.damage


def delete_runs(cursor: sqlite3.Cursor, ids: Iterable[str]) -> int:
    """Forget runs and their comparisons; how many there were."""
    count = 0
    # No look agrees with the rows any more, whatever becomes of the process that changes them.
    cursor.execute("DELETE FROM looks")
    for run in ids:
        found = cursor.execute("SELECT number, moment FROM runs WHERE id = ?", (run,)).fetchone()
        if found is not None:
            _forget(cursor, *found)
            cursor.execute("DELETE FROM runs WHERE number = ?", (found[0],))
            count += 1
    return count


def insert_runs(cursor: sqlite3.Cursor, found: Sequence[tuple[FullMark, Entries]]) -> None:
    """Put marks and entries in; what was known of the same folders before is replaced."""
    lines: dict[tuple[str, ...], tuple[int, int]] = {}
    builds: dict[tuple[str, str], int] = {}
    for mark, entries in found:
        delete_runs(cursor, [entries.run.id])
        moment = _moment(entries.run.started)
        number = _insert_run(cursor, entries.run, mark, moment)
        rows = [
            (
                _line(cursor, lines, row),
                moment,
                number,
                _build(cursor, builds, row),
                _PLACES[row.verdict],
                row.untrusted,
                min(row.launches, _LARGEST),
                *_values(row),
            )
            for row in entries.comparisons
        ]
        marks = ", ".join("?" * 14)
        cursor.executemany(f"INSERT OR REPLACE INTO comparisons VALUES ({marks})", rows)
        cursor.executemany(
            "INSERT OR IGNORE INTO run_builds VALUES (?, ?)", {(row[3], number) for row in rows}
        )


def _forget(cursor: sqlite3.Cursor, number: int, moment: int) -> None:
    cursor.execute("DELETE FROM comparisons WHERE moment = ? AND run = ?", (moment, number))
    cursor.execute("DELETE FROM run_builds WHERE run = ?", (number,))


def _insert_run(cursor: sqlite3.Cursor, run: RunEntry, mark: FullMark, moment: int) -> int:
    row = {
        "id": run.id,
        "mark": mark.facts,
        "rows_mark": mark.rows,
        "settled": is_settled(mark, run),
        "moment": moment,
        "study": run.study,
        "state": run.state,
        "started": run.started,
        "finished": run.finished,
        "machine": run.machine,
        "machine_text": run.machine_text,
        "torch": run.torch,
        "revision": run.revision,
        "torchyard": run.torchyard,
        "verdicts": json.dumps([[verdict, count] for verdict, count in run.verdicts]),
        "verdict_bits": verdict_bits(verdict for verdict, _ in run.verdicts),
        "comparisons": run.comparisons,
        "notes": json.dumps(run.notes),
        "damage": run.damage,
    }
    columns, marks = ", ".join(row), ", ".join("?" * len(row))
    cursor.execute(f"INSERT INTO runs ({columns}) VALUES ({marks})", tuple(row.values()))
    return int(cursor.lastrowid or 0)


def _line(
    cursor: sqlite3.Cursor, known: dict[tuple[str, ...], tuple[int, int]], row: ComparisonEntry
) -> int:
    key = (
        *(row.workload, row.baseline, row.candidate, row.machine),
        *(row.suite, row.mode, row.device),
    )
    if key not in known:
        cursor.execute(
            "INSERT OR IGNORE INTO lines"
            " (workload, baseline, candidate, machine, suite, mode, device)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            key,
        )
        known[key] = cursor.execute(
            "SELECT number, metric_bits FROM lines WHERE workload = ? AND baseline = ?"
            " AND candidate = ? AND machine = ? AND suite = ? AND mode = ? AND device = ?",
            key,
        ).fetchone()
    number, bits = known[key]
    values = zip(METRICS, (row.speedup, row.candidate_ns, row.compile_s, row.memory_bytes))  # noqa: B905
    wanted = bits | sum(metric_bit(metric) for metric, value in values if value is not None)
    if wanted != bits:
        cursor.execute("UPDATE lines SET metric_bits = ? WHERE number = ?", (wanted, number))
        known[key] = (number, wanted)
    return number


def _build(cursor: sqlite3.Cursor, known: dict[tuple[str, str], int], row: ComparisonEntry) -> int:
    key = (row.revision, row.torch)
    if key not in known:
        cursor.execute("INSERT OR IGNORE INTO builds (revision, torch) VALUES (?, ?)", key)
        (known[key],) = cursor.execute(
            "SELECT number FROM builds WHERE revision = ? AND torch = ?", key
        ).fetchone()
    return known[key]


def _values(row: ComparisonEntry) -> tuple[float | int | None, ...]:
    numbers = (row.speedup, row.low, row.high, row.baseline_ns, row.candidate_ns, row.compile_s)
    memory = row.memory_bytes
    return (
        *(number if number is not None and not math.isnan(number) else None for number in numbers),
        memory if memory is not None and abs(memory) <= _LARGEST else None,
    )


def _moment(started: str) -> int:
    try:
        return milliseconds(started)
    except (ValueError, OverflowError):
        return 0
