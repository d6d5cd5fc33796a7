"""Two sides compared, as a table for a terminal and as plain text. Loads `rich` when it is drawn."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Final

from torchyard.core.comparison import Verdict
from torchyard.core.cross_comparison import CrossComparison
from torchyard.reports.compare_wording import (
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
)
from torchyard.reports.plain_text import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["compare_text", "print_comparison"]

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
    """The terminal's tables as plain text."""
    from rich.console import Console

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
    """Sides, rows, notes, summary, what cannot be compared, and facts that differ."""
    ascii_only = console.options.ascii_only

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
        say("facts that differ (those marked ! forbid a verdict):")
        console.print(_facts(comparison, ascii_only))


def _table(comparison: CrossComparison, ascii_only: bool) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

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
    """Note -> its number; rows that say the same share one."""
    texts = ("; ".join(notes_of_row(row)) for row in comparison.rows)
    return {text: number for number, text in enumerate(dict.fromkeys(filter(None, texts)), start=1)}


def _note_list(notes: dict[str, int], ascii_only: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for text, number in notes.items():
        grid.add_row(str(number), Text(_fit(text, ascii_only)))
    return grid


def _facts(comparison: CrossComparison, ascii_only: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

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
