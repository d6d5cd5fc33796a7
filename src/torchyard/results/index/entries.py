"""Convert a run folder into index entries, and insert and delete their rows.

An unreadable folder becomes an entry with the reason. Callers hold the transaction.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from torchyard.core.comparison import Comparison, Verdict
from torchyard.errors import NotAllowed, ResultsDamaged
from torchyard.machine.identity import machine_name, machine_text, table_of
from torchyard.machine.system.file_tree import unescaped
from torchyard.results.directory import COMPARISONS_FILE, RECORD_FILES, RUN_FILE, parse_utc
from torchyard.results.index.database import VERDICTS
from torchyard.results.model import METRICS, ComparisonEntry, Metric, RunEntry
from torchyard.results.run_reader import (
    Run,
    read_info,
    read_run,
    revision_of_run,
    revision_of_variant,
    target_facts,
)

INDEX_FILE: Final = ".index.sqlite"

_LOCAL: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs"}
    | {"tmpfs", "xfs", "zfs"}
)
"""Local file systems with reliable locks. All others are treated as network file systems."""


def places_for(home: Path) -> list[Path]:
    """Return candidate files for the index, best first; empty if none is possible."""
    if not home.is_dir():
        return []
    places = []
    inside = home / INDEX_FILE
    # In a shared results directory the file may belong to another user.
    accessible = not inside.exists() or os.access(inside, os.R_OK | os.W_OK)
    if accessible and is_local(home) and os.access(home, os.W_OK | os.X_OK):
        places.append(inside)
    digest = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:16]
    cache = _cache_folder()
    if cache is not None:
        places.append(cache / f"index-{digest}.sqlite")
    return places


def is_local(folder: Path) -> bool:
    """Return whether the folder's file system has reliable locks."""
    return folder.exists() and file_system_of(folder) in _LOCAL


def file_system_of(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the file system type of a folder, such as `ext4` or `nfs4`; empty if unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    device_number = ""
    with suppress(OSError):
        device = os.stat(folder).st_dev  # noqa: PTH116
        device_number = f"{os.major(device)}:{os.minor(device)}"
    by_device, by_path, longest = "", "", -1
    path = folder.resolve()
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:  # noqa: PLR2004 - see proc(5)
            continue
        kind = after.split()[0]
        if fields[2] == device_number:
            by_device = kind
        point = Path(unescaped(fields[4]))
        # The last of several mounts on one directory is the visible one.
        if path.is_relative_to(point) and len(point.parts) >= longest:
            by_path, longest = kind, len(point.parts)
    # Device numbers are exact, but stat shows a different one on some file systems (btrfs, overlay).
    return by_device or by_path


def _cache_folder() -> Path | None:
    named = os.environ.get("XDG_CACHE_HOME")
    base = Path(named) if named and Path(named).is_absolute() else None
    if base is None:
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return base / "torchyard"


_MIN_FOR_THREADS: Final = 50
_THREADS: Final = 16
_SETTLING_S: Final = 3.0
"""Longer than the timestamp resolution of any file system; FAT has two seconds."""
_INSIDE: Final = f"/{RUN_FILE}"


class FullMark(NamedTuple):
    """Fingerprint of a folder when it is read."""

    facts: str
    """Fingerprint of `run.json`, which every scan compares."""
    rows: str = ""
    """Fingerprint of the comparisons; empty if there are none."""
    aged: bool = True
    """Whether both files were last changed more than `_SETTLING_S` ago."""


def marks_in(home: Path) -> dict[str, str]:
    """Return the mark of every run folder by name; empty if the results directory is missing."""
    try:
        # Folders that are being deleted or imported start with a dot.
        names = [
            name
            for name in os.listdir(home)  # noqa: PTH208 -- a path is made for each name otherwise
            # A name that is not valid UTF-8 cannot be written to JSON.
            if name[0] != "." and (name.isascii() or name == _clean(name))
        ]
        # On a network file system each stat is a request: send several at once.
        threads = 1 if len(names) < _MIN_FOR_THREADS or is_local(home) else _THREADS
        return marks_of(home, names, threads=threads)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except PermissionError as error:
        raise NotAllowed(
            f"cannot read {home}",
            why=str(error.strerror),
            hint="set TORCHYARD_HOME to a readable folder",
        ) from error


def marks_of(home: Path, names: list[str], *, threads: int = 1) -> dict[str, str]:
    """Return the marks of those folders that are runs."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def mark(name: str) -> str | None:
        try:
            # Relative to the folder, which is faster for thousands of stat calls.
            status = os.stat(name + _INSIDE, dir_fd=descriptor)
        except OSError:
            return "no run.json" if _has_records(home / name) else None
        return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"

    try:
        if threads == 1:
            marks = [mark(name) for name in names]
        else:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(threads) as pool:
                marks = list(pool.map(mark, names))
    finally:
        os.close(descriptor)
    return {name: mark for name, mark in zip(names, marks, strict=True) if mark is not None}


def digest_of(marks: dict[str, str]) -> str:
    """Return a digest of the folders and their marks, in order."""
    state = hashlib.sha256("\n".join(marks).encode())
    state.update(b"\0")  # not allowed in file names
    state.update("\n".join(marks.values()).encode())
    return state.hexdigest()


def full_mark(folder: Path) -> FullMark | None:
    """Return the mark of one folder before it is read; None if it is not a run."""
    now = time.time()
    try:
        facts = (folder / RUN_FILE).stat()
    except OSError:
        return FullMark("no run.json") if _has_records(folder) else None
    mark, aged = f"{facts.st_mtime_ns} {facts.st_size} {facts.st_ino}", _aged(facts, now)
    try:
        rows = (folder / COMPARISONS_FILE).stat()
    except OSError:
        return FullMark(mark, "", aged)
    return FullMark(mark, f"{rows.st_mtime_ns} {rows.st_size}", aged and _aged(rows, now))


def _aged(facts: os.stat_result, now: float) -> bool:
    # A copy may keep the old modification time; the change time is that of the copy.
    return all(abs(now - moment) > _SETTLING_S for moment in (facts.st_mtime, facts.st_ctime))


def _has_records(folder: Path) -> bool:
    """Return whether the folder has records but no `run.json`; a new run has empty files only."""
    for name in RECORD_FILES:
        try:
            if (folder / name).stat().st_size > 0:
                return True
        except OSError:
            continue
    return False


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
    """Parse an ISO 8601 time (UTC by default) to milliseconds since 1970; raise ValueError for other texts."""
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
    candidate = next(
        (variant for variant in run.study.variants if variant.name == row.candidate), None
    )
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


def _damaged(folder: Path, error: ResultsDamaged) -> RunEntry:
    """Return the entry of a damaged run, with facts from `run.json` if that is readable."""
    why = f"{error.what}: {error.why}" if error.why else error.what
    try:
        info: Mapping[str, Any] = read_info(folder)
    except (ResultsDamaged, OSError):
        info = {}
    return RunEntry(
        id=_clean(folder.name),
        folder=str(folder),
        study=_clean(table_of(info, "study").get("name", "")),
        state=_clean(info.get("state", "")),
        revision=_clean(info.get("revision") or ""),
        # The folder is a separate field; the message must not contain its path.
        damage=_clean(why.replace(f"{folder}/", "").replace(str(folder), "it")),
        **_facts(folder, info),
    )


def _facts(folder: Path, info: Mapping[str, Any]) -> dict[str, Any]:
    facts = table_of(info, "targets").values()
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
            number, moment = row
            cursor.execute("DELETE FROM comparisons WHERE moment = ? AND run = ?", (moment, number))
            cursor.execute("DELETE FROM run_builds WHERE run = ?", (number,))
            cursor.execute("DELETE FROM runs WHERE number = ?", (number,))
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


def _insert_run(cursor: sqlite3.Cursor, run: RunEntry, mark: FullMark, moment: int) -> int:
    row = {
        **vars(run),
        "mark": mark.facts,
        "rows_mark": mark.rows,
        "settled": is_settled(mark, run),
        "moment": moment,
        "verdicts": json.dumps(run.verdicts),
        "verdict_bits": verdict_bits(verdict for verdict, _ in run.verdicts),
        "comparisons": run.comparisons,
        "notes": json.dumps(run.notes),
    }
    del row["folder"]  # depends on where the results directory is mounted
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
