"""The table of comparisons for a terminal, and the same as plain text.

Two layouts: one line per comparison where there is room for it, two lines below that. Notes are
numbered and stand below the table, because they are sentences. Only this module knows `rich`, and
it loads it when a table is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING, Final

from torchyard.core.comparison import Comparison, Verdict
from torchyard.reports.guard_text import disturbed_lines, unread_guards
from torchyard.reports.plain_text import one_line
from torchyard.reports.summary import summary_lines
from torchyard.reports.wording import (
    notes_of,
    p_text,
    pairs_text,
    speedup_text,
    time_text,
    title_of,
    verdict_text,
    workload_text,
)
from torchyard.results.run_reader import Run

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

__all__ = ["comparison_table", "guard_lines", "summary_lines", "to_text"]

_ONE_LINE_WIDTH: Final = 110
_TEXT_WIDTH: Final = 120

_STYLES: Final[dict[Verdict, str]] = {
    Verdict.FASTER: "green",
    Verdict.SLOWER: "red",
    Verdict.SAME: "",
    Verdict.UNDECIDED: "dim",
    Verdict.UNTRUSTED: "yellow",
    Verdict.WRONG: "bold red",
    Verdict.FAILED: "bold red",
}
# A terminal without Unicode still shows every mark.
_ASCII: Final = str.maketrans(
    {"▲": "^", "▼": "v", "✗": "x", "–": "-", "±": "+-", "µ": "u", "·": "/", "×": "x"}
)


def comparison_table(
    comparisons: Sequence[Comparison], *, precision_goal: float | None = None
) -> ComparisonTable:
    """A table that fits the console it is printed on."""
    return ComparisonTable(comparisons, precision_goal)


def to_text(run: Run) -> str:
    """The terminal's table and summary as plain text."""
    from rich.console import Console

    page = StringIO()
    console = Console(
        file=page,
        width=_TEXT_WIDTH,
        color_system=None,
        force_terminal=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(f"{one_line(run.study.name)}  ({run.state}, {run.id})")
    console.print(comparison_table(run.comparisons, precision_goal=run.study.budget.precision_goal))
    for line in summary_lines(run.comparisons, confidence=1 - run.study.budget.alpha):
        console.print(line, soft_wrap=True)
    for line in guard_lines(run):
        console.print(line, soft_wrap=True)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def guard_lines(run: Run) -> list[str]:
    """Below the summary: what disturbed blocks, and which guards did not read."""
    sections = {
        "disturbed blocks:": disturbed_lines(run.comparisons),
        "guards that did not read:": [f"{name}: {text}" for name, text in unread_guards(run)],
    }
    return [
        line
        for heading, lines in sections.items()
        for line in ([heading, *(f"  {line}" for line in lines)] if lines else [])
    ]


class ComparisonTable:
    """What `rich` draws; it asks for the width when it is drawn."""

    def __init__(self, comparisons: Sequence[Comparison], precision_goal: float | None) -> None:
        self._comparisons = comparisons
        self._notes = [
            notes_of(comparison, precision_goal=precision_goal) for comparison in comparisons
        ]
        names = {comparison.baseline for comparison in comparisons}
        self._common_baseline = one_line(names.pop()) if len(names) == 1 else ""
        self._ascii = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self._ascii = options.ascii_only
        wide = options.max_width >= _ONE_LINE_WIDTH
        yield self._one_line_table() if wide else self._two_line_table()
        if any(self._notes):
            yield ""
            yield self._note_list()

    def _numbers(self) -> list[str]:
        """The number of each row's note; empty where there is nothing to note."""
        numbers, count = [], 0
        for notes in self._notes:
            count += bool(notes)
            numbers.append(str(count) if notes else "")
        return numbers

    def _one_line_table(self) -> Table:
        table = self._frame()
        table.add_column("workload", overflow="fold", ratio=1)
        table.add_column(self._baseline_header(" time"), justify="right")
        table.add_column("candidate", overflow="fold")
        table.add_column("time", justify="right", no_wrap=True)
        table.add_column("speedup", justify="right", no_wrap=True)
        table.add_column("p", justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        table.add_column("launches\n/pairs", justify="right")
        table.add_column("notes", justify="right", no_wrap=True)
        for comparison, number in zip(self._comparisons, self._numbers(), strict=True):
            estimate = comparison.estimate
            self._add(
                table,
                comparison,
                workload_text(comparison),
                self._baseline_time(comparison),
                one_line(comparison.candidate),
                time_text(comparison.candidate_metrics),
                speedup_text(comparison),
                p_text(comparison),
                verdict_text(comparison.state),
                pairs_text(estimate),
                number,
            )
        return table

    def _two_line_table(self) -> Table:
        table = self._frame()
        table.add_column("workload\ncandidate", overflow="fold", ratio=1)
        table.add_column(self._baseline_header("\ntime"), justify="right", no_wrap=True)
        table.add_column("speedup\ninterval", justify="right", no_wrap=True)
        table.add_column("verdict\np", no_wrap=True)
        table.add_column("launches\n/pairs", justify="right", no_wrap=True)
        table.add_column("notes", justify="right", no_wrap=True)
        for comparison, number in zip(self._comparisons, self._numbers(), strict=True):
            estimate = comparison.estimate
            speedup, _, interval = speedup_text(comparison).partition(" ")
            if interval and not comparison.trusted:
                speedup, interval = f"{speedup})", f"({interval}"
            self._add(
                table,
                comparison,
                f"{workload_text(comparison)}\n  {one_line(comparison.candidate)}",
                f"{self._baseline_time(comparison)}\n{time_text(comparison.candidate_metrics)}",
                f"{speedup}\n{interval}",
                f"{verdict_text(comparison.state)}\n  {p_text(comparison)}",
                pairs_text(estimate),
                number,
            )
        return table

    def _frame(self) -> Table:
        from rich import box
        from rich.table import Table

        return Table(
            box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold"
        )

    def _baseline_header(self, after: str) -> Text:
        from rich.text import Text

        return Text(self._fit((self._common_baseline or "baseline") + after))

    def _baseline_time(self, comparison: Comparison) -> str:
        time = time_text(comparison.baseline_metrics)
        return time if self._common_baseline else f"{one_line(comparison.baseline)} {time}"

    def _add(self, table: Table, comparison: Comparison, *cells: str) -> None:
        from rich.text import Text

        said = verdict_text(comparison.state)
        plain = "" if comparison.trusted else "dim"
        table.add_row(
            *(
                Text(
                    self._fit(cell),
                    style=_STYLES[comparison.state] if cell.startswith(said) else plain,
                )
                for cell in cells
            )
        )

    def _note_list(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        grid.add_column(justify="right", no_wrap=True)
        grid.add_column(overflow="fold")
        for comparison, number, notes in zip(
            self._comparisons, self._numbers(), self._notes, strict=True
        ):
            if notes:
                text = f"{title_of(comparison)}: {'; '.join(notes)}"
                grid.add_row(Text(number), Text(self._fit(text)))
        grid.add_row("", "")
        return grid

    def _fit(self, text: str) -> str:
        return text.translate(_ASCII) if self._ascii else text
