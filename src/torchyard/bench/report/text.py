"""The table of comparisons as text: for a terminal, as plain text, and in Markdown.

The terminal table has one line per comparison where there is room, two lines otherwise. Notes are
numbered and printed below the table. `rich` is loaded when a table is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Final

from torchyard.bench.report.generation import generation_lines
from torchyard.bench.report.shown_run import row_command, shown_run
from torchyard.bench.report.suite_summary import (
    SuiteRow,
    blocks_text,
    counts_text,
    disturbed_lines,
    excluded_from_means,
    mean_text,
    pass_text,
    suite_means,
    suite_rows,
    summary_lines,
    unavailable_sensors,
    wall_time_text,
)
from torchyard.core.comparison import WITHOUT_SPEED, Comparison, Verdict
from torchyard.presentation.safe_text import escaped, one_line
from torchyard.presentation.wording import (
    notes_of,
    number_text,
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


_ONE_LINE_WIDTH: Final = 110
_TEXT_WIDTH: Final = 120
_NAME_WIDTH: Final = 24
_SHORT_WIDTH: Final = 14
"""Widths of columns with names, in the one-line and the two-line table."""

_STYLES: Final[dict[Verdict, str]] = {
    Verdict.FASTER: "green",
    Verdict.SLOWER: "red",
    Verdict.SAME: "",
    Verdict.UNDECIDED: "dim",
    Verdict.UNTRUSTED: "yellow",
    Verdict.WRONG: "bold red",
    Verdict.FAILED: "bold red",
}
# Replacements for terminals without Unicode.
_ASCII: Final = str.maketrans(
    {"▲": "^", "▼": "v", "✗": "x", "–": "-", "±": "+-", "µ": "u", "·": "/", "×": "x"}
)


def comparison_table(
    comparisons: Sequence[Comparison], *, precision_goal: float | None = None
) -> ComparisonTable:
    """Return a table that fits the console it is printed on."""
    return ComparisonTable(comparisons, precision_goal)


def to_text(run: Run) -> str:
    """Return the table and the summary as plain text, 120 columns wide."""
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
    print_run(run, console, lambda line: console.print(line, soft_wrap=True))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def print_run(run: Run, console: Console, print_line: Callable[[str], None]) -> None:
    """Print the table and the summary; the table fits the console."""
    run = shown_run(run)
    print_line(f"{one_line(run.study.name)}  ({run.state}, {run.id})")
    console.print(comparison_table(run.comparisons, precision_goal=run.study.budget.precision_goal))
    for line in summary_lines(run.comparisons, confidence=1 - run.study.budget.alpha):
        print_line(line)
    price = run.info.get("price_per_hour")
    for line in generation_lines(run.comparisons, price_per_hour=price):
        print_line(line)
    for line in guard_lines(run):
        print_line(line)
    if wall_time := wall_time_text(run):
        print_line(f"wall time: {wall_time}")
    if command := row_command(run, "N" if len(run.comparisons) > 1 else 1):
        print_line(f"repeat a row: {command}")


def guard_lines(run: Run) -> list[str]:
    """Return the lines below the summary: disturbed blocks and unavailable sensors."""
    sections = {
        "disturbed blocks:": disturbed_lines(run.comparisons),
        "unavailable sensors:": [f"{name}: {text}" for name, text in unavailable_sensors(run)],
    }
    return [
        line
        for heading, lines in sections.items()
        for line in ([heading, *(f"  {line}" for line in lines)] if lines else [])
    ]


class ComparisonTable:
    """A `rich` renderable that adapts to the width of the console."""

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
        """Return the note number of each row; empty for rows without notes."""
        numbers, count = [], 0
        for notes in self._notes:
            count += bool(notes)
            numbers.append(str(count) if notes else "")
        return numbers

    def _one_line_table(self) -> Table:
        table = self._frame()
        table.add_column("workload", overflow="fold", ratio=1)
        table.add_column(self._baseline_header(" time"), justify="right", max_width=_NAME_WIDTH)
        table.add_column("candidate", overflow="fold", min_width=self._name_width())
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
        table.add_column(
            "workload\ncandidate", overflow="fold", ratio=1, min_width=self._name_width()
        )
        table.add_column(self._baseline_header("\ntime"), justify="right", max_width=_SHORT_WIDTH)
        table.add_column("speedup\ninterval", justify="right", no_wrap=True)
        table.add_column("verdict\np", no_wrap=True)
        table.add_column("launches\n/pairs", justify="right", no_wrap=True)
        table.add_column("notes", justify="right", no_wrap=True)
        for comparison, number in zip(self._comparisons, self._numbers(), strict=True):
            estimate = comparison.estimate
            speedup, _, interval = speedup_text(comparison).partition(" ")
            if interval and comparison.state in WITHOUT_SPEED:
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

    def _name_width(self) -> int:
        """Return the width that names need, up to a limit: other columns must not take it."""
        lengths = (len(one_line(comparison.candidate)) for comparison in self._comparisons)
        return min(_SHORT_WIDTH, max(lengths, default=0))

    def _baseline_header(self, after: str) -> Text:
        from rich.text import Text

        return Text(self._fit((self._common_baseline or "baseline") + after))

    def _baseline_time(self, comparison: Comparison) -> str:
        time = time_text(comparison.baseline_metrics)
        return time if self._common_baseline else f"{one_line(comparison.baseline)} {time}"

    def _add(self, table: Table, comparison: Comparison, *cells: str) -> None:
        from rich.text import Text

        verdict = verdict_text(comparison.state)
        plain = "dim" if comparison.state in WITHOUT_SPEED else ""
        table.add_row(
            *(
                Text(
                    self._fit(cell),
                    style=_STYLES[comparison.state] if cell.startswith(verdict) else plain,
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


_HEADINGS: Final = (
    "workload",
    "baseline",
    "time",
    "candidate",
    "time",
    "speedup",
    "p",
    "verdict",
    "launches/pairs",
)
_RIGHT: Final = (2, 4, 5, 6, 8)


def to_markdown(run: Run) -> str:
    """Return the run as Markdown."""
    run = shown_run(run)
    lines = [f"## {escaped(run.study.name)}", "", f"Run {escaped(run.id)}, {run.state}.", ""]
    lines.append("| " + " | ".join(_HEADINGS) + " |")
    rule = ("---:" if index in _RIGHT else "---" for index in range(len(_HEADINGS)))
    lines.append("| " + " | ".join(rule) + " |")
    for comparison in run.comparisons:
        cells = (
            workload_text(comparison),
            comparison.baseline,
            time_text(comparison.baseline_metrics),
            comparison.candidate,
            time_text(comparison.candidate_metrics),
            speedup_text(comparison),
            p_text(comparison),
            verdict_text(comparison.state),
            pairs_text(comparison.estimate),
        )
        lines.append("| " + " | ".join(escaped(cell) for cell in cells) + " |")
    lines += ["", escaped(counts_text(run.comparisons))]
    means = suite_means(run.comparisons, confidence=1 - run.study.budget.alpha)
    lines += [""] * bool(means) + [f"- {escaped(mean_text(mean))}" for mean in means]
    lines += _suite_table(suite_rows(run.comparisons, confidence=1 - run.study.budget.alpha))
    price = run.info.get("price_per_hour")
    if generated := generation_lines(run.comparisons, price_per_hour=price):
        lines += ["", "**Text generation**", ""]
        lines += [
            f"- {escaped(line)}" if line[0] != " " else f"  - {escaped(line.strip())}"
            for line in generated
        ]
    sections = {
        "Excluded from the mean": [
            (item, reason) for item, reason in excluded_from_means(run.comparisons)
        ],
        "Notes": [
            (item, "; ".join(notes))
            for item in run.comparisons
            if item.failure is None
            and (notes := notes_of(item, precision_goal=run.study.budget.precision_goal))
        ],
    }
    disturbed = [(item, blocks_text(item.guards)) for item in run.comparisons if item.guards.dirty]
    sections["Disturbed blocks"] = disturbed
    for heading, items in sections.items():
        if items:
            lines += ["", f"**{heading}**", ""]
            lines += [f"- {escaped(title_of(item))}: {escaped(text)}" for item, text in items]
    unavailable = unavailable_sensors(run)
    if unavailable:
        lines += ["", "**Unavailable sensors**", ""]
        lines += [f"- {escaped(name)}: {escaped(text)}" for name, text in unavailable]
    return "\n".join(lines) + "\n"


def _suite_table(rows: Sequence[SuiteRow]) -> list[str]:
    """Return the table by suite; empty if there is only one row."""
    if len(rows) < 2:  # noqa: PLR2004 - two suites, or two candidates
        return []
    lines = ["", "| suite | candidate | geometric mean | passed |", "| --- | --- | ---: | ---: |"]
    for row in rows:
        mean = row.mean
        mean_cell = (
            f"{number_text(mean.speedup)}x "
            f"[{number_text(mean.interval.low)}, {number_text(mean.interval.high)}]"
            if mean
            else "none"
        )
        cells = (
            row.suite,
            row.candidate,
            mean_cell,
            pass_text(row.passed, row.total, row.not_checked),
        )
        lines.append("| " + " | ".join(escaped(cell) for cell in cells) + " |")
    return lines
