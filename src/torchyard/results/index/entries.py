"""Convert a run folder into index entries, and insert and delete their rows.

An unreadable folder becomes an entry with the reason. Callers hold the transaction.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.study import Variant
from torchyard.errors import ResultsDamaged
from torchyard.machine.identity import machine_name, machine_text
from torchyard.results.directory import parse_utc
from torchyard.results.index.database import VERDICTS
from torchyard.results.index.folders import FullMark
from torchyard.results.model import METRICS, ComparisonEntry, Metric, RunEntry
from torchyard.results.run_reader import (
    Run,
    read_info,
    read_run,
    revision_of_run,
    revision_of_variant,
    target_facts,
)

_NAME_TIME: Final = re.compile(r"^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)\.(\d{3})Z")


@dataclass(frozen=True, kw_only=True)
class Entries:
    """The index entries of one run folder."""

    run: RunEntry
    comparisons: tuple[ComparisonEntry, ...] = ()


def entries_of(folder: Path) -> Entries:
    """Return the entries of a folder; the folder name is the id of the run."""
    try:
        run = read_run(folder)
    except ResultsDamaged as error:
        return Entries(run=_damaged(folder, error))
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        unread = ResultsDamaged(f"{folder} cannot be read", why=str(error))
        return Entries(run=_damaged(folder, unread))
    entry = _run(run)
    return Entries(
        run=entry, comparisons=tuple(_comparison(run, entry, row) for row in run.comparisons)
    )


def milliseconds(moment: str) -> int:
    """Parse an ISO 8601 time to milliseconds since 1970; UTC if it has no time zone.

    Raises ValueError for other texts.
    """
    return round(parse_utc(moment).timestamp() * 1000)


def _run(run: Run) -> RunEntry:
    counts = Counter(row.state for row in run.comparisons)
    return RunEntry(
        id=_clean(run.folder.name),
        folder=str(run.folder),
        state=run.state,
        study=_clean(run.study.name),
        verdicts=tuple((verdict, counts[verdict]) for verdict in Verdict if counts[verdict]),
        revision=_clean(revision_of_run(run.info, run.study)),
        **_facts(run.folder, run.info),
    )


def _comparison(run: Run, entry: RunEntry, row: Comparison) -> ComparisonEntry:
    candidate = _variant(run, row.candidate)
    estimate, interval = row.estimate, row.estimate.interval if row.estimate else None
    torch = row.candidate_metrics.torch_version
    if not torch and candidate is not None:
        torch = str(target_facts(run.info, candidate).get("torch") or "")
    return ComparisonEntry(
        run=entry.id,
        started=entry.started,
        machine=entry.machine,
        revision=_clean(revision_of_variant(run.info, candidate) if candidate else ""),
        workload=_clean(row.workload.label),
        suite=_clean(row.workload.suite),
        mode=row.workload.mode,
        device=_clean(row.workload.device),
        baseline=_clean(row.baseline),
        candidate=_clean(row.candidate),
        verdict=row.state,
        speedup=estimate.speedup if estimate else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        launches=estimate.launches if estimate else 0,
        baseline_ns=row.baseline_metrics.time_ns,
        candidate_ns=row.candidate_metrics.time_ns,
        compile_s=row.candidate_metrics.compile_cold_s,
        memory_bytes=row.candidate_metrics.peak_memory_bytes,
        launch_sd=estimate.launch_sd if estimate else None,
        pair_sd=estimate.pair_sd if estimate else None,
        pairs=estimate.pairs if estimate else 0,
        torch=_clean(torch),
        untrusted=_clean("; ".join(row.untrusted)),
    )


def _variant(run: Run, name: str) -> Variant | None:
    return next((variant for variant in run.study.variants if variant.name == name), None)


def _damaged(folder: Path, error: ResultsDamaged) -> RunEntry:
    """Return the entry of a damaged run, with facts from `run.json` if that is readable."""
    why = f"{error.what}: {error.why}" if error.why else error.what
    try:
        info: Mapping[str, Any] = read_info(folder)
    except (ResultsDamaged, OSError):
        info = {}
    study = info.get("study")
    return RunEntry(
        id=_clean(folder.name),
        folder=str(folder),
        study=_clean(study.get("name", "")) if isinstance(study, Mapping) else "",
        state=_clean(info.get("state", "")),
        revision=_clean(info.get("revision") or ""),
        # The folder is a separate field; the message must not contain its path.
        damage=_clean(why.replace(f"{folder}/", "").replace(str(folder), "it")),
        **_facts(folder, info),
    )


def _facts(folder: Path, info: Mapping[str, Any]) -> dict[str, Any]:
    targets = info.get("targets")
    facts = targets.values() if isinstance(targets, Mapping) else ()
    torches = [str(fact.get("torch") or "") for fact in facts if isinstance(fact, Mapping)]
    notes = info.get("notes")
    finished = info.get("finished")
    return {
        "started": _started(folder, info),
        "finished": _clean(finished) if finished else None,
        "machine": machine_name(info) if info else "",
        "machine_text": _clean(machine_text(info)),
        "torch": _clean(", ".join(dict.fromkeys(filter(None, torches)))),
        "torchyard": _clean(info.get("torchyard", "")),
        "notes": tuple(_clean(note) for note in notes) if isinstance(notes, list) else (),
    }


def _started(folder: Path, info: Mapping[str, Any]) -> str:
    """Return the recorded start, else the time in the folder name, else empty."""
    recorded = _clean(info.get("started") or "")
    try:
        milliseconds(recorded)
    except (ValueError, OverflowError):
        named = _NAME_TIME.match(folder.name)
        if named is None:
            return ""
        year, month, day, hour, minute, second, rest = named.groups()
        return f"{year}-{month}-{day}T{hour}:{minute}:{second}.{rest}Z"
    return recorded


def _clean(value: object) -> str:
    """Replace lone surrogates, which a record may contain and UTF-8 cannot encode."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


# ruff: noqa: S608 -- only names of our own columns are put into statements; values are parameters


METRIC_COLUMNS: Final[dict[Metric, str]] = {
    "speedup": "speedup",
    "time": "candidate_ns",
    "compile": "compile_s",
    "memory": "memory_bytes",
}
_VERDICT_INDEX: Final = {verdict: index for index, verdict in enumerate(VERDICTS)}
_LARGEST: Final = 2**63 - 1


def metric_bit(metric: Metric) -> int:
    """Return the bit of `metric_bits` for a metric."""
    return 1 << METRICS.index(metric)


def verdict_bits(verdicts: Iterable[str]) -> int:
    """Return the bits of `verdict_bits` for these verdicts."""
    chosen = set(verdicts)
    return sum(1 << index for verdict, index in _VERDICT_INDEX.items() if verdict in chosen)


def is_settled(mark: FullMark, run: RunEntry) -> bool:
    """Return whether any further change of the folder would change its `run.json`."""
    # A running run may be killed; a damaged one may become readable through changed permissions.
    return mark.aged and run.state != "running" and not run.damage


def delete_runs(cursor: sqlite3.Cursor, ids: Iterable[str]) -> int:
    """Delete runs and their comparisons; return how many there were."""
    count = 0
    # The last scan no longer matches the rows, even if this process is killed.
    cursor.execute("DELETE FROM looks")
    for run in ids:
        row = cursor.execute("SELECT number, moment FROM runs WHERE id = ?", (run,)).fetchone()
        if row is not None:
            _delete_comparisons(cursor, *row)
            cursor.execute("DELETE FROM runs WHERE number = ?", (row[0],))
            count += 1
    return count


def insert_runs(cursor: sqlite3.Cursor, runs: Sequence[tuple[FullMark, Entries]]) -> None:
    """Insert marks and entries, replacing earlier entries of the same folders."""
    lines: dict[tuple[str, ...], tuple[int, int]] = {}
    builds: dict[tuple[str, str], int] = {}
    for mark, entries in runs:
        delete_runs(cursor, [entries.run.id])
        moment = _moment(entries.run.started)
        number = _insert_run(cursor, entries.run, mark, moment)
        rows = [
            (
                _line(cursor, lines, row),
                moment,
                number,
                _build(cursor, builds, row),
                _VERDICT_INDEX[row.verdict],
                row.untrusted,
                min(row.launches, _LARGEST),
                *_values(row),
                min(row.pairs, _LARGEST),
            )
            for row in entries.comparisons
        ]
        parameters = ", ".join("?" * 17)
        cursor.executemany(f"INSERT OR REPLACE INTO comparisons VALUES ({parameters})", rows)
        cursor.executemany(
            "INSERT OR IGNORE INTO run_builds VALUES (?, ?)", {(row[3], number) for row in rows}
        )


def _delete_comparisons(cursor: sqlite3.Cursor, number: int, moment: int) -> None:
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
    columns, parameters = ", ".join(row), ", ".join("?" * len(row))
    cursor.execute(f"INSERT INTO runs ({columns}) VALUES ({parameters})", tuple(row.values()))
    return int(cursor.lastrowid or 0)


def _line(
    cursor: sqlite3.Cursor, numbers: dict[tuple[str, ...], tuple[int, int]], row: ComparisonEntry
) -> int:
    key = (
        *(row.workload, row.baseline, row.candidate, row.machine),
        *(row.suite, row.mode, row.device),
    )
    if key not in numbers:
        cursor.execute(
            "INSERT OR IGNORE INTO lines"
            " (workload, baseline, candidate, machine, suite, mode, device)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            key,
        )
        numbers[key] = cursor.execute(
            "SELECT number, metric_bits FROM lines WHERE workload = ? AND baseline = ?"
            " AND candidate = ? AND machine = ? AND suite = ? AND mode = ? AND device = ?",
            key,
        ).fetchone()
    number, bits = numbers[key]
    values = zip(METRICS, (row.speedup, row.candidate_ns, row.compile_s, row.memory_bytes))  # noqa: B905
    new_bits = bits | sum(metric_bit(metric) for metric, value in values if value is not None)
    if new_bits != bits:
        cursor.execute("UPDATE lines SET metric_bits = ? WHERE number = ?", (new_bits, number))
        numbers[key] = (number, new_bits)
    return number


def _build(
    cursor: sqlite3.Cursor, numbers: dict[tuple[str, str], int], row: ComparisonEntry
) -> int:
    key = (row.revision, row.torch)
    if key not in numbers:
        cursor.execute("INSERT OR IGNORE INTO builds (revision, torch) VALUES (?, ?)", key)
        (numbers[key],) = cursor.execute(
            "SELECT number FROM builds WHERE revision = ? AND torch = ?", key
        ).fetchone()
    return numbers[key]


def _values(row: ComparisonEntry) -> tuple[float | int | None, ...]:
    numbers = (row.speedup, row.low, row.high, row.baseline_ns, row.candidate_ns, row.compile_s)
    memory = row.memory_bytes
    return (
        *map(_number, numbers),
        memory if memory is not None and abs(memory) <= _LARGEST else None,
        _number(row.launch_sd),
        _number(row.pair_sd),
    )


def _number(number: float | None) -> float | None:
    return number if number is not None and not math.isnan(number) else None


def _moment(started: str) -> int:
    try:
        return milliseconds(started)
    except (ValueError, OverflowError):
        return 0
