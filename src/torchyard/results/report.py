"""Runs and comparisons of many runs as tables: text for a terminal, CSV, JSON lines and Parquet.

Text columns are never truncated. Exported tables have one row per comparison, with columns of its
run but without the host name. New columns are only added at the end; `FORMS` lists the formats.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from torchyard.core.comparison import WITHOUT_SPEED
from torchyard.core.short_names import short_texts
from torchyard.core.units import format_count
from torchyard.errors import MissingTool
from torchyard.presentation.safe_text import aligned, one_line
from torchyard.presentation.tables import csv_text
from torchyard.results.model import ComparisonEntry, RunEntry

_COMMIT_LETTERS: Final = 10
_COMMIT_WHOLE: Final = 40


def run_table(runs: Sequence[RunEntry]) -> str:
    """Return a table with one line per run."""
    heading = ("RUN", "STARTED", "STUDY", "REVISION", "MACHINE", "RESULTS")
    rows = [
        (run.id, when(run.started), run.study, _short(run.revision), run.machine, _results(run))
        for run in runs
    ]
    return aligned([heading, *rows])


def comparison_table(entries: Sequence[ComparisonEntry], *, with_run: bool = True) -> str:
    """Return a table with one line per comparison."""
    heading: tuple[str, ...]
    rows: list[tuple[str, ...]]
    heading = ("WORKLOAD", "BASELINE", "CANDIDATE", "VERDICT", "SPEEDUP", "INTERVAL", "LAUNCHES")
    labels = short_texts(entry.workload for entry in entries)
    rows = [
        (
            labels[entry.workload],
            entry.baseline,
            entry.candidate,
            entry.verdict.value,
            _bracketed(entry, _number(entry.speedup)),
            _bracketed(
                entry,
                f"{_number(entry.low)} to {_number(entry.high)}" if entry.low is not None else "",
            ),
            str(entry.launches or ""),
        )
        for entry in entries
    ]
    if any(not entry.trusted for entry in entries):
        heading += ("UNTRUSTED BECAUSE",)
        rows = [(*row, entry.untrusted) for row, entry in zip(rows, entries, strict=True)]
    if not with_run:
        return aligned([heading, *rows])
    rows = [
        (entry.run, *row, _short(entry.revision), entry.machine)
        for entry, row in zip(entries, rows, strict=True)
    ]
    return aligned([("RUN", *heading, "REVISION", "MACHINE"), *rows])


def run_text(run: RunEntry, comparisons: Sequence[ComparisonEntry]) -> str:
    """Return all facts of a run and its comparisons as text."""
    facts = {
        "study": run.study,
        "state": run.state,
        "started": run.started,
        "finished": run.finished or "",
        "revision": run.revision,
        "torch": run.torch,
        "machine": f"{run.machine} ({run.machine_text})" if run.machine_text else run.machine,
        "torchyard": run.torchyard,
        "folder": run.folder,
        "unreadable": run.damage,
    }
    lines = [run.id, *(f"  {name:<10} {one_line(text)}" for name, text in facts.items() if text)]
    lines += [f"  {'note':<10} {one_line(note)}" for note in run.notes]
    if comparisons:
        lines += ["", comparison_table(comparisons, with_run=False)]
    return "\n".join(lines)


def when(moment: str) -> str:
    """Format a recorded time as `2025-01-31 12:00` (UTC)."""
    return moment[:16].replace("T", " ")


def _results(run: RunEntry) -> str:
    if run.damage:
        return f"unreadable: {run.damage}"
    counts = ", ".join(f"{count} {verdict.value}" for verdict, count in run.verdicts)
    state = "" if run.state == "finished" else run.state
    marks = format_count(len(run.notes), "note") if run.notes else ""
    return "; ".join(part for part in (counts or "no comparisons", state, marks) if part)


def _short(revision: str) -> str:
    """Abbreviate commit hashes; keep other texts."""
    return ", ".join(
        part[:_COMMIT_LETTERS] if len(part) == _COMMIT_WHOLE and part.isalnum() else part
        for part in revision.split(", ")
    )


def _bracketed(entry: ComparisonEntry, text: str) -> str:
    """Put untrusted and wrong numbers in parentheses."""
    return f"({text})" if text and (not entry.trusted or entry.verdict in WITHOUT_SPEED) else text


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


Row = Mapping[str, Any]

_TEXTS: Final = (
    *("run", "started", "study", "state", "revision", "torch", "machine", "workload", "suite"),
    *("mode", "device", "baseline", "candidate", "verdict"),
)
COLUMNS: Final[Mapping[str, type]] = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(("speedup", "low", "high"), float),
    "launches": int,
    **dict.fromkeys(("baseline_ns", "candidate_ns", "compile_s"), float),
    "memory_bytes": int,
    **dict.fromkeys(("launch_sd", "pair_sd"), float),
    "pairs": int,
    "trusted": bool,
    **dict.fromkeys(("untrusted", "torchyard", "notes"), str),
}


def rows_of(
    comparisons: Iterable[ComparisonEntry], runs: Iterable[RunEntry]
) -> Iterator[dict[str, Any]]:
    """Yield a row of `COLUMNS` for each comparison."""
    by_id = {run.id: run for run in runs}
    for entry in comparisons:
        run = by_id.get(entry.run) or RunEntry(id=entry.run, folder="")
        of_run = {
            "study": run.study,
            "state": run.state,
            "torchyard": run.torchyard,
            "notes": "; ".join(run.notes),
        }
        yield {name: of_run[name] if name in of_run else getattr(entry, name) for name in COLUMNS}


def to_csv(rows: Iterable[Row]) -> bytes:
    """Return CSV with a heading; text that looks like a formula is prefixed with an apostrophe."""
    plain = ([row[name] for name in COLUMNS] for row in rows)
    cells = ([str(x).lower() if isinstance(x, bool) else x for x in row] for row in plain)
    return csv_text([COLUMNS, *cells]).encode("utf-8")


def to_json_lines(rows: Iterable[Row]) -> bytes:
    """Return one JSON object per line; unknown values are null."""
    lines = (json.dumps({name: _plain(row[name]) for name in COLUMNS}) + "\n" for row in rows)
    return "".join(lines).encode("ascii")


def to_parquet(rows: Iterable[Row]) -> bytes:
    """Return compressed Parquet with typed columns; needs pyarrow."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingTool(
            "Parquet needs pyarrow", why=str(error), hint="pip install 'torchyard[parquet]'"
        ) from error
    kinds = {str: pa.string(), float: pa.float64(), int: pa.int64(), bool: pa.bool_()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    plain = [{name: _plain(row[name]) for name in COLUMNS} for row in rows]
    page = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(plain, schema=schema), page, compression="zstd")
    return page.getvalue()


FORMS: Final[Mapping[str, Callable[[Sequence[Row]], bytes]]] = {
    "csv": to_csv,
    "jsonl": to_json_lines,
    "parquet": to_parquet,
}


def _plain(value: object) -> object:
    """Replace non-finite numbers by None, and enum members by their text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, str) else value
