"""Report a comparison of two sides: terminal table, plain text, Markdown, JSON, CSV and HTML.

The HTML page is one self-contained file. jinja2 is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import StringIO
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchyard import __version__
from torchyard.core.comparison import Verdict
from torchyard.core.records import encode
from torchyard.presentation.chart_layout import speedup_axis
from torchyard.presentation.html_page import render_page
from torchyard.presentation.safe_text import escaped, one_line
from torchyard.presentation.tables import Cell, csv_text, escaped_cells, json_text, markdown_table
from torchyard.results.compare.model import CrossComparison, CrossRow, FactDifference, SideNumbers
from torchyard.results.compare.wording import (
    LEGEND,
    assumption_text,
    counts_text,
    drift_text,
    mean_text,
    notes_of_row,
    p_of_row,
    ratio_text,
    row_title,
    side_lines,
    side_speedup,
    side_time,
    unpaired_text,
    verdict_of_row,
    with_short_names,
)

COMPARE_SCHEMA: Final = "torchyard.comparison-of-runs"
COMPARE_SCHEMA_VERSION: Final = 1
"""Incremented when a key changes its meaning or is removed, not when keys are added."""

_EMPTY_SIDE: Final = SideNumbers(variant="")
_EMPTY: Final = CrossRow(
    workload="", one=_EMPTY_SIDE, other=_EMPTY_SIDE, support="not supported", basis="times"
)
"""Provides the headings, also for a comparison without rows."""


def compare_json(comparison: CrossComparison) -> str:
    """Render as JSON; non-finite numbers become null."""
    rows = [
        {**encode(row), "trusted": row.trusted, "baseline_shift": row.baseline_shift}
        for row in comparison.rows
    ]
    document = {
        "schema": COMPARE_SCHEMA,
        "schema_version": COMPARE_SCHEMA_VERSION,
        **encode(comparison),
        "rows": rows,
    }
    return json_text(document)


def compare_csv(comparison: CrossComparison) -> str:
    """Render as CSV, one row per workload; workloads that cannot be compared come last."""
    headings = list(_row_data(_EMPTY))
    rows = [_row_data(row) for row in comparison.rows]
    rows += [
        {
            "workload": item.workload,
            "a_variant": item.variants[0],
            "b_variant": item.variants[1],
            "support": f"A {item.one}, B {item.other}",
            "notes": item.why,
        }
        for item in comparison.unpaired
    ]
    return csv_text([headings, *([row.get(name) for name in headings] for row in rows)])


def _row_data(row: CrossRow) -> dict[str, Cell]:
    interval = row.interval
    return {
        "workload": row.workload,
        "support": row.support,
        "basis": row.basis,
        "verdict": row.verdict.value if row.verdict else None,
        "trusted": row.trusted,
        "untrusted": "; ".join(row.untrusted),
        "ratio": row.ratio,
        "ratio_low": interval.low if interval else None,
        "ratio_high": interval.high if interval else None,
        "confidence": interval.confidence if interval else None,
        "p_value": row.p_value,
        "p_adjusted": row.p_adjusted,
        **_side("a", row.one),
        **_side("b", row.other),
        "baseline_shift": row.baseline_shift,
        "notes": "; ".join(row.reasons),
    }


def _side(letter: str, numbers: SideNumbers) -> dict[str, Cell]:
    interval = numbers.interval
    return {
        f"{letter}_variant": numbers.variant,
        f"{letter}_time_ns": numbers.time_ns,
        f"{letter}_speedup": numbers.speedup,
        f"{letter}_speedup_low": interval.low if interval else None,
        f"{letter}_speedup_high": interval.high if interval else None,
        f"{letter}_launches": numbers.launches,
        f"{letter}_sessions": numbers.sessions,
        f"{letter}_compile_s": numbers.compile_s,
        f"{letter}_memory_bytes": numbers.memory_bytes,
        f"{letter}_dirty_share": numbers.dirty_share,
    }


_STYLES: Final[dict[Verdict | None, str]] = {
    Verdict.FASTER: "green",
    Verdict.SLOWER: "red",
    Verdict.UNDECIDED: "dim",
    Verdict.UNTRUSTED: "yellow",
    None: "dim",
}
_ASCII: Final = str.maketrans(
    {"▲": "^", "▼": "v", "✗": "x", "–": "-", "±": "+-", "µ": "u", "·": "/", "×": "x", "…": "..."}
)
_TEXT_WIDTH: Final = 100


def compare_text(comparison: CrossComparison, *, width: int = _TEXT_WIDTH) -> str:
    """Render the terminal tables as plain text."""
    page = StringIO()
    console = Console(
        file=page,
        width=width,
        color_system=None,
        force_terminal=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    print_comparison(comparison, console)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def print_comparison(comparison: CrossComparison, console: Console) -> None:
    """Print sides, rows, notes, summary, workloads that cannot be compared, and differing facts."""
    ascii_only = console.options.ascii_only
    comparison = with_short_names(comparison)

    def say(text: str) -> None:
        console.print(_fit(text, ascii_only), soft_wrap=True, markup=False, highlight=False)

    for name, text in side_lines(comparison):
        say(f"{name}  {text}")
    say("")
    if comparison.rows:
        console.print(_table(comparison, ascii_only))
        notes = _numbered_notes(comparison)
        if notes:
            say("")
            console.print(_note_list(notes, ascii_only))
        say("")
        say(LEGEND)
    say(counts_text(comparison))
    if comparison.rows:
        say(mean_text(comparison))
    for text in (drift_text(comparison), assumption_text(comparison)):
        if text:
            say(text)
    if comparison.unpaired:
        say("cannot be compared:")
        for item in comparison.unpaired:
            say(f"  {row_title(item, variants=_several(comparison))}: {unpaired_text(item)}")
    if comparison.facts:
        say("")
        say("facts that differ (those marked ! rule out a verdict):")
        console.print(_facts(comparison, ascii_only))


def _table(comparison: CrossComparison, ascii_only: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("workload\nsupport", overflow="fold", ratio=1)
    table.add_column("A time\nB time", justify="right", no_wrap=True)
    table.add_column("A speedup\nB speedup", justify="right", no_wrap=True)
    table.add_column("ratio\ninterval", justify="right", no_wrap=True)
    table.add_column("verdict\np", no_wrap=True)
    table.add_column("notes", justify="right", no_wrap=True)
    notes = _numbered_notes(comparison)
    for row in comparison.rows:
        verdict = Text(_fit(verdict_of_row(row), ascii_only), style=_STYLES.get(row.verdict, ""))
        cells = (
            f"{row_title(row, variants=_several(comparison))}\n  {row.support}",
            f"{side_time(row.one)}\n{side_time(row.other)}",
            f"{side_speedup(row.one)}\n{side_speedup(row.other)}",
            "\n".join(ratio_text(row)),
        )
        table.add_row(
            *(Text(_fit(cell, ascii_only), style="" if row.trusted else "dim") for cell in cells),
            verdict.append(_fit(f"\n  {p_of_row(row)}", ascii_only), style="default"),
            str(notes.get("; ".join(notes_of_row(row)), "")),
        )
    return table


def _numbered_notes(comparison: CrossComparison) -> dict[str, int]:
    """Return the notes with their numbers; rows with the same note share a number."""
    texts = ("; ".join(notes_of_row(row)) for row in comparison.rows)
    return {text: number for number, text in enumerate(dict.fromkeys(filter(None, texts)), start=1)}


def _note_list(notes: dict[str, int], ascii_only: bool) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for text, number in notes.items():
        grid.add_row(str(number), Text(_fit(text, ascii_only)))
    return grid


def _facts(comparison: CrossComparison, ascii_only: bool) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold", max_width=30)
    grid.add_column(overflow="fold", ratio=1)
    grid.add_column(overflow="fold", ratio=1)
    grid.add_row("", "", Text("A", style="bold"), Text("B", style="bold"))
    for fact in comparison.facts:
        cells = (fact.name, fact.one or "none", fact.other or "none")
        texts = (Text(_fit(one_line(cell), ascii_only)) for cell in cells)
        grid.add_row("!" if fact.blocks else " ", *texts)
    return grid


def _several(comparison: CrossComparison) -> bool:
    return len(comparison.one.variants) > 1 or len(comparison.other.variants) > 1


def _fit(text: str, ascii_only: bool) -> str:
    return text.translate(_ASCII) if ascii_only else text


_HEADINGS: Final = (
    "workload",
    "A time",
    "B time",
    "A speedup",
    "B speedup",
    "ratio",
    "p",
    "verdict",
    "support",
)
_RIGHT: Final = (1, 2, 3, 4, 5, 6)


def compare_markdown(comparison: CrossComparison) -> str:
    """Render as Markdown."""
    comparison = with_short_names(comparison)
    several = _several(comparison)
    lines = ["## B compared with A", ""]
    lines += [f"- **{name}**: {escaped(text)}" for name, text in side_lines(comparison)]
    if comparison.rows:
        cells = [
            (
                row_title(row, variants=several),
                side_time(row.one),
                side_time(row.other),
                side_speedup(row.one),
                side_speedup(row.other),
                " ".join(ratio_text(row)),
                p_of_row(row),
                verdict_of_row(row),
                row.support,
            )
            for row in comparison.rows
        ]
        lines += ["", *markdown_table(_HEADINGS, escaped_cells(cells), right=_RIGHT)]
    summary = [LEGEND, counts_text(comparison), mean_text(comparison)]
    summary += [drift_text(comparison), assumption_text(comparison)]
    lines += ["", *(f"- {escaped(text)}" for text in summary if text)]
    notes = [
        f"- {escaped(row_title(row, variants=several))}: {escaped('; '.join(texts))}"
        for row in comparison.rows
        if (texts := notes_of_row(row))
    ]
    unpaired = [
        f"- {escaped(row_title(item, variants=several))}: {escaped(unpaired_text(item))}"
        for item in comparison.unpaired
    ]
    for heading, items in (("Notes", notes), ("Cannot be compared", unpaired)):
        if items:
            lines += ["", f"**{heading}**", "", *items]
    if comparison.facts:
        lines += ["", "**Facts that differ** (bold: those that rule out a verdict)", ""]
        lines += fact_table(("fact", "A", "B"), comparison.facts)
    return "\n".join(lines) + "\n"


def fact_table(heads: tuple[str, str, str], facts: Iterable[FactDifference]) -> list[str]:
    """Return facts that differ as a Markdown table; those that rule out a verdict are bold."""
    return markdown_table(
        heads,
        [
            (
                f"**{escaped(fact.name)}**" if fact.blocks else escaped(fact.name),
                escaped(fact.one or "none"),
                escaped(fact.other or "none"),
            )
            for fact in facts
        ],
    )


def compare_html(comparison: CrossComparison) -> str:
    """Render the HTML page."""
    return render_page(
        *("compare.html.j2", "report.css", "compare.css"),
        title=f"{one_line(comparison.one.text)} vs {one_line(comparison.other.text)}",
        version=__version__,
        sides=side_lines(comparison),
        sortable=False,
        **compare_values(comparison),
    )


def compare_values(comparison: CrossComparison) -> dict[str, Any]:
    """Return the variables of `compare_body.html.j2`, except `sortable`."""
    comparison = with_short_names(comparison)
    several = _several(comparison)
    numbers = [number for row in comparison.rows for number in _numbers(row)]
    return {
        "mean": comparison.mean,
        "counts": counts_text(comparison),
        "remarks": [text for text in (drift_text(comparison), assumption_text(comparison)) if text],
        "confidence": f"{100 * comparison.confidence:g}%",
        "margin": comparison.margin,
        "axis": speedup_axis([1.0, *numbers]),
        "rows": [_row_values(row, several=several) for row in comparison.rows],
        "unpaired": [
            (row_title(item, variants=several), unpaired_text(item)) for item in comparison.unpaired
        ],
        "facts": comparison.facts,
    }


def _row_values(row: CrossRow, *, several: bool) -> dict[str, Any]:
    ratio, interval = ratio_text(row)
    verdict = row.verdict or Verdict.UNDECIDED
    return {
        "title": row_title(row, variants=several),
        "notes": notes_of_row(row),
        "support": row.support,
        "supported": row.support != "not supported",
        "verdict": verdict.value,
        "verdict_text": verdict_of_row(row),
        "ratio": ratio,
        "interval": interval,
        "low": row.interval.low if row.interval else None,
        "high": row.interval.high if row.interval else None,
        "value": row.ratio,
        "p": p_of_row(row),
        "times": (side_time(row.one), side_time(row.other)),
        "speedups": (side_speedup(row.one), side_speedup(row.other)),
    }


def _numbers(row: CrossRow) -> list[float]:
    if row.ratio is None or row.support == "not supported":
        return []
    return [row.ratio, *([row.interval.low, row.interval.high] if row.interval else [])]


COMPARE_FORMATS: Final[dict[str, Callable[[CrossComparison], str]]] = {
    "terminal": compare_text,
    "json": compare_json,
    "csv": compare_csv,
    "html": compare_html,
    "markdown": compare_markdown,
}
