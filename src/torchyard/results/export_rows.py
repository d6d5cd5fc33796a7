"""Comparisons of many runs as one table, in forms that other programs read.

One row per comparison, with what is needed of its run; the host's name is left out. Columns are
only ever added, at the end. The forms are listed in `FORMS`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from torchyard.core.stored import ComparisonEntry, RunEntry
from torchyard.errors import MissingTool

__all__ = ["COLUMNS", "FORMS", "rows_of"]

Row = Mapping[str, Any]

COLUMNS: Final[Mapping[str, type]] = {
    "run": str,
    "started": str,
    "study": str,
    "state": str,
    "revision": str,
    "torch": str,
    "machine": str,
    "workload": str,
    "suite": str,
    "mode": str,
    "device": str,
    "baseline": str,
    "candidate": str,
    "verdict": str,
    "speedup": float,
    "low": float,
    "high": float,
    "launches": int,
    "baseline_ns": float,
    "candidate_ns": float,
    "compile_s": float,
    "memory_bytes": int,
    "trusted": bool,
    "untrusted": str,
    "torchyard": str,
    "notes": str,
}
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")


def rows_of(
    comparisons: Iterable[ComparisonEntry], runs: Iterable[RunEntry]
) -> Iterator[dict[str, Any]]:
    """A row of `COLUMNS` for each comparison, with what is known of its run."""
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
    """With a heading. Text that a spreadsheet would take for a formula gets an apostrophe."""
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow(_cell(row[name]) for name in COLUMNS)
    return page.getvalue().encode("utf-8")


def to_json_lines(rows: Iterable[Row]) -> bytes:
    """One object per line; what is unknown is null."""
    lines = (json.dumps({name: _plain(row[name]) for name in COLUMNS}) + "\n" for row in rows)
    return "".join(lines).encode("ascii")


def to_parquet(rows: Iterable[Row]) -> bytes:
    """Typed columns, compressed; needs pyarrow."""
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


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA_STARTS) else value
    return _plain(value)


def _plain(value: object) -> object:
    """JSON has no infinity, and a verdict is a text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, str) else value
