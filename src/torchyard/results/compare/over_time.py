"""`torchyard compare --over-time`: the results of one workload in all runs, oldest first.

Prints one table per series, as text, Markdown, JSON or CSV, without conclusions: `torchyard compare`
gives verdicts between two runs, and `torchyard history` finds change points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import indent
from typing import Final

from torchyard.core.records import encode
from torchyard.core.short_names import short_texts
from torchyard.errors import NothingToDo, UsageError
from torchyard.presentation.safe_text import aligned, escaped, one_line
from torchyard.presentation.tables import csv_text, escaped_cells, json_text, markdown_table
from torchyard.presentation.wording import number_text
from torchyard.results.index.store import Store
from torchyard.results.model import RunFilter, Series, SeriesPoint

HISTORY_SCHEMA: Final = "torchyard.history"
HISTORY_SCHEMA_VERSION: Final = 1

History = Sequence[tuple[Series, Sequence[SeriesPoint]]]

_HEADINGS: Final = ("started", "run", "revision", "speedup", "interval", "notes")
_REMARK: Final = "Each speedup is paired within its run. Use `torchyard compare RUN RUN` to test whether two differ."
_REVISION_LETTERS: Final = 12


def history_text(history: History) -> str:
    """Return the series as plain text."""
    lines: list[str] = []
    for title, points in _titled(history):
        table = aligned([_HEADINGS, *map(_cells, points)])
        lines += [title, indent(table, "  "), ""]
    return "\n".join([*lines, _REMARK]) + "\n"


def history_markdown(history: History) -> str:
    """Return the series as Markdown tables."""
    lines: list[str] = []
    for title, points in _titled(history):
        rows = escaped_cells(map(_cells, points))
        lines += [f"## {escaped(title)}", ""]
        lines += [*markdown_table(_HEADINGS, rows, right=(3, 4)), ""]
    return "\n".join([*lines, escaped(_REMARK)]) + "\n"


def history_json(history: History) -> str:
    """Return the series as JSON."""
    document = {
        "schema": HISTORY_SCHEMA,
        "schema_version": HISTORY_SCHEMA_VERSION,
        "series": [
            {**encode(series), "points": [encode(point) for point in points]}
            for series, points in history
        ],
    }
    return json_text(document)


def history_csv(history: History) -> str:
    """Return the series as CSV, one row per run and series."""
    headings = [*Series.__annotations__, *SeriesPoint.__annotations__]
    rows = (
        [*encode(series).values(), *encode(point).values()]
        for series, points in history
        for point in points
    )
    return csv_text([headings, *rows])


HISTORY_FORMATS: Final[dict[str, Callable[[History], str]]] = {
    "terminal": history_text,
    "markdown": history_markdown,
    "json": history_json,
    "csv": history_csv,
}


def _titled(history: History) -> list[tuple[str, Sequence[SeriesPoint]]]:
    """Return the title and the points of each series."""
    labels = short_texts(series.workload for series, _ in history)
    return [
        (
            one_line(
                f"{labels[series.workload]}: {series.candidate} against {series.baseline} "
                f"on {series.machine}"
            ),
            points,
        )
        for series, points in history
    ]


def _cells(point: SeriesPoint) -> tuple[str, ...]:
    has_interval = point.low is not None and point.high is not None
    interval = f"[{number_text(point.low)}, {number_text(point.high)}]" if has_interval else "none"
    return (
        point.started[:19].replace("T", " "),
        one_line(point.run),
        one_line(point.revision)[:_REVISION_LETTERS] or "unknown",
        f"{number_text(point.value)}x",
        interval,
        "untrusted" if point.untrusted else "",
    )


def history_of(workload: str, format_name: str) -> str:
    """Return the history of every matching series in that format."""
    if format_name not in HISTORY_FORMATS:
        raise UsageError(
            f"--over-time does not support the format {format_name}",
            hint=f"choose one of {', '.join(HISTORY_FORMATS)}",
        )
    with Store.open() as store:
        store.refresh()
        # A name without its mode means all modes: labels are `kernels/matmul inference`.
        matching = store.series(RunFilter(workload=workload)) or store.series(
            RunFilter(workload=f"{workload} *")
        )
        history = [(series, store.points(series)) for series in matching]
    if not history:
        raise NothingToDo(
            f"no run in {store.home} has a result of {workload!r}",
            hint="see the runs with `torchyard results list`; a workload is given as kernels/matmul",
        )
    return HISTORY_FORMATS[format_name](history)
