"""A sweep summary in words: the wording that all formats share, and the report for a terminal.

The terminal report shows each suite, the extremes, and everything that did not pass. The wording
has no escaping and no layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from torchyard.bench.report.suite_summary import pass_text
from torchyard.core.comparison import Interval, Verdict
from torchyard.core.units import format_percent
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.wording import ABSENT, MARKS, number_text, verdict_text
from torchyard.sweep.model import (
    End,
    FalseAlarms,
    GroupKey,
    MeanSpeedup,
    SweepGroup,
    SweepRow,
    SweepSummary,
)

_SMALLEST_CHANCE: Final = 0.001
_MINUTE_S: Final = 100.0
_FEW: Final = 3.0
"""Comparisons are too few to praise a machine while so many times the promised rate is possible."""


def sweep_line(summary: SweepSummary) -> str:
    """When, how much of it, which part."""
    parts = [f"{summary.cells_finished} of {summary.cells} cells finished"]
    if summary.shard[1] > 1:
        parts.append(f"part {summary.shard[0]} of {summary.shard[1]}")
    if summary.created:
        parts.append(f"planned {one_line(summary.created)}")
    if summary.revision:
        parts.append(f"revision {one_line(summary.revision)}")
    if summary.null:
        parts.append("everything against itself")
    return ", ".join(parts)


def group_name(key: GroupKey) -> str:
    """`kernels inference float32`; `everything` of a total."""
    return " ".join(one_line(part) for part in (key.suite, key.mode, key.precision) if part) or (
        "everything"
    )


def row_name(row: SweepRow) -> str:
    """`kernels/matmul inference · bfloat16 · inductor`."""
    return " · ".join(one_line(part) for part in (row.workload, row.precision, row.candidate))


def end_text(end: End) -> str:
    """The word for people."""
    return end.replace("-", " ") if end != "non-deterministic" else end


def end_mark(row: SweepRow) -> str:
    """What did not pass is crossed out, whatever its speed."""
    if row.end == "passed" or row.verdict is Verdict.UNTRUSTED:
        return MARKS[row.verdict]
    return MARKS[Verdict.UNDECIDED if row.end == "not-finished" else Verdict.FAILED]


def ends_text(group: SweepGroup) -> str:
    """`1 wrong, 2 out of memory`: what did not pass."""
    return ", ".join(f"{count} {end_text(end)}" for end, count in group.ends if end != "passed")


def passed_text(group: SweepGroup) -> str:
    """`5 of 6 (83%)`."""
    return pass_text(group.passed, group.workloads)


def mean_cell(mean: MeanSpeedup | None, *, untrusted: int = 0) -> str:
    """`1.052x [1.031, 1.073] of 5`, with the number of untrusted rows that it does not hold."""
    rest = f" ({untrusted} untrusted left out)" if untrusted else ""
    if mean is None:
        return ABSENT + rest
    scope = ", one launch" if mean.scope == "processes" else ""
    number = f"{number_text(mean.speedup)}x {_interval(mean.interval)}"
    return f"{number} of {mean.workloads}{scope}{rest}"


def speedup_cell(row: SweepRow) -> tuple[str, str]:
    """Speedup and interval; in parentheses when they are not trusted."""
    if row.speedup is None:
        return ABSENT, ""
    texts = [f"{number_text(row.speedup)}x", _interval(row.interval) if row.interval else ""]
    if not row.trusted:
        texts = [f"({text})" if text else "" for text in texts]
    return texts[0], texts[1]


def not_wrong_lines(groups: Sequence[SweepGroup]) -> list[str]:
    """For groups whose means leave out results that are close, but cannot be called right."""
    return [
        f"with those that could not be shown to be right: {group_name(group.key)}, "
        f"{one_line(group.key.candidate)}: {mean_cell(group.not_wrong)}"
        for group in groups
        if group.not_wrong is not None
    ]


def compile_text(group: SweepGroup) -> str:
    """`median 21.4 s, sum 107 s`."""
    if group.compile_median_s is None or group.compile_sum_s is None:
        return ABSENT
    return f"median {seconds_text(group.compile_median_s)}, sum {seconds_text(group.compile_sum_s)}"


def memory_text(group: SweepGroup) -> str:
    """`0.981x of 5`: candidate over baseline."""
    if group.memory_ratio is None:
        return ABSENT
    return f"{number_text(group.memory_ratio)}x of {group.memory_rows}"


def break_even_text(group: SweepGroup) -> str:
    """`median 420 iterations of 4`."""
    if group.break_even_median is None:
        return ABSENT
    return f"median {_rounded(group.break_even_median)} iterations of {group.break_even_rows}"


def seconds_text(duration_s: float) -> str:
    """`21.4 s`, `3.5 m`, `2.1 h`."""
    for unit, size in (("h", 3600.0), ("m", 60.0)):
        if duration_s >= size * _MINUTE_S / 60.0:
            return f"{duration_s / size:.1f} {unit}"
    return f"{duration_s:.3g} s"


def verdict_lines(summary: SweepSummary) -> list[str]:
    """How many comparisons said what."""
    counts = Counter(row.verdict for row in summary.rows)
    said = ", ".join(
        f"{MARKS[verdict]} {counts[verdict]} {verdict.value}"
        for verdict in Verdict
        if counts[verdict]
    )
    total = len(summary.rows)
    noun = "comparison" if total == 1 else "comparisons"
    return [f"{total} {noun}: {said}" if total else "no comparisons", *family_lines(summary)]


def family_lines(summary: SweepSummary) -> list[str]:
    """What the correction for so many comparisons did."""
    tested = [row for row in summary.rows if row.p_adjusted is not None]
    if not tested:
        return []
    demoted = sum(row.demoted for row in tested)
    text = (
        f"p-values are corrected for the {len(tested)} comparisons of the sweep that have a test "
        f"(Benjamini-Hochberg at {format_percent(summary.alpha)})"
    )
    if demoted:
        noun = "claim does" if demoted == 1 else "claims do"
        text += f"; {demoted} {noun} not survive that and became undecided"
    return [text]


def alarm_lines(alarms: FalseAlarms, margin: float) -> list[str]:
    """Whether this machine keeps its promise, in plain sentences; the answer first."""
    total, promised = alarms.comparisons, format_percent(alarms.alpha)
    if not total:
        return ["No comparison has a test: nothing can be said of false alarms."]
    rate = format_percent(alarms.significant / total)
    lines = [_answer(alarms)]
    lines.append(
        f"{alarms.significant} of {total} comparisons of a thing with itself have an interval "
        f"without 1: {rate} {_percents(alarms.rate)}; {promised} are promised."
    )
    inside = alarms.significant - alarms.called
    text = f"{alarms.called} of them {_were(alarms.called)} called faster or slower"
    if inside:
        text += f" ({inside} more {_were(inside)} within the margin of {format_percent(margin)})"
    lines.append(text + f"; {alarms.called_adjusted} after the correction for all comparisons.")
    lines.append(
        "p-values should be spread evenly or lean towards 1, where those of comparisons lie that "
        f"stopped early as the same; the largest excess of small ones is "
        f"{format_percent(alarms.excess)}, which chance alone exceeds in "
        f"{_chance(alarms.excess_chance)} of sweeps."
    )
    if alarms.shared_baselines:
        lines.append(
            "Several candidates share one baseline, so alarms come together: the interval is too "
            "narrow."
        )
    return lines


def _answer(alarms: FalseAlarms) -> str:
    promised = format_percent(alarms.alpha)
    shown = f"{alarms.significant} or more false alarms of {alarms.comparisons}"
    seen = f"a machine that keeps to it shows {shown} in {_chance(alarms.chance)} of sweeps"
    limit = format_percent(alarms.rate.high)
    if alarms.within and alarms.rate.high > _FEW * alarms.alpha:
        return (
            f"Nothing speaks against the stated error rate of {promised}, but "
            f"{alarms.comparisons} comparisons say little: {seen}, and rates up to {limit} cannot "
            "be ruled out."
        )
    if alarms.within:
        return (
            f"This machine is within its stated error rate of {promised}: {seen}. "
            f"Rates above {limit} can be ruled out."
        )
    if alarms.chance > alarms.excess_chance:
        seen = (
            f"small p-values are too frequent, which chance alone explains in "
            f"{_chance(alarms.excess_chance)} of sweeps"
        )
    return (
        f"This machine is NOT within its stated error rate of {promised}: {seen}. Do not believe "
        "small differences; `torchyard machine audit` says what disturbs it."
    )


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _interval(interval: Interval) -> str:
    return f"[{number_text(interval.low)}, {number_text(interval.high)}]"


def _percents(interval: Interval) -> str:
    return f"[{format_percent(interval.low)}, {format_percent(interval.high)}]"


def _chance(chance: float) -> str:
    if chance < _SMALLEST_CHANCE:
        return f"less than {format_percent(_SMALLEST_CHANCE)}"
    return "all" if chance >= 1.0 else format_percent(chance)


def _rounded(number: float) -> str:
    """Three digits at most are known of it."""
    return f"{float(f'{number:.3g}'):,.0f}".replace(",", " ")


def reasons_of(rows: Sequence[SweepRow]) -> list[tuple[SweepRow, str]]:
    """Rows that did not pass, each with its reason on one line."""
    return [(row, one_line(row.reason) or "no reason was recorded") for row in rows]


def as_selected(row: SweepRow) -> SweepRow:
    """The row as lists of the best and worst show it: with the interval for selected rows."""
    return replace(row, interval=row.selected_interval or row.interval)


def selection_text(rows: Sequence[SweepRow]) -> str:
    """Say what level the intervals of the best or worst rows have: ` (99.2% intervals, ...)`."""
    levels = {row.selected_interval.confidence for row in rows if row.selected_interval}
    if len(levels) != 1:
        return ""
    return f" ({100 * levels.pop():.4g}% intervals, corrected for selection)"


_BAR: Final = 30


def sweep_text(summary: SweepSummary) -> str:
    """Plain text; nothing from outside in it acts on a terminal."""
    lines = [one_line(summary.name), sweep_line(summary), ""]
    lines += [f"! {one_line(doubt)}" for doubt in summary.doubts]
    lines += [""] * bool(summary.doubts)
    if summary.false_alarms is not None:
        lines += ["false alarms of this machine", *_alarms(summary), ""]
    groups = [*summary.groups, *summary.totals]
    heads = ("suite", "candidate", "passed", "common workloads", "all it passed", "did not pass")
    lines += _aligned([heads, *_named_once(_group_cells(group) for group in groups)])
    lines += not_wrong_lines(groups)
    costs = [group for group in groups if group.compiled or group.memory_rows]
    if costs:
        cost_heads = ("cost", "candidate", "compiling", "memory", "break-even")
        lines += ["", *_aligned([cost_heads, *_named_once(_cost_cells(group) for group in costs)])]
    lines += ["", *verdict_lines(summary)]
    for heading, rows in (("fastest", summary.best), ("slowest", summary.worst)):
        if rows:
            lines += [
                "",
                f"{heading}{selection_text(rows)}:",
                *_indented(_aligned([_row_cells(as_selected(row)) for row in rows])),
            ]
    failed = summary.not_passed
    if failed:
        lines += ["", f"did not pass ({len(failed)} of {len(summary.rows)}):", *_failures(failed)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _group_cells(group: SweepGroup) -> tuple[str, ...]:
    return (
        group_name(group.key),
        one_line(group.key.candidate),
        passed_text(group),
        mean_cell(group.common, untrusted=group.untrusted),
        mean_cell(group.own, untrusted=group.untrusted),
        ends_text(group),
    )


def _cost_cells(group: SweepGroup) -> tuple[str, ...]:
    return (
        group_name(group.key),
        one_line(group.key.candidate),
        compile_text(group),
        memory_text(group),
        break_even_text(group),
    )


def _named_once(rows: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """A name that is that of the row above is left out."""
    above = ""
    for name, *cells in rows:
        yield ("" if name == above else name, *cells)
        above = name


def _row_cells(row: SweepRow) -> tuple[str, ...]:
    speedup, interval = speedup_cell(row)
    return (verdict_text(row.verdict), speedup, interval or ABSENT, row_name(row))


def _failures(rows: Sequence[SweepRow]) -> Iterator[str]:
    for row, reason in reasons_of(rows):
        yield f"  {end_mark(row)} {end_text(row.end)}  {row_name(row)}: {reason}"
        if row.log:
            yield f"      log: {one_line(row.log)}"


def _alarms(summary: SweepSummary) -> list[str]:
    alarms = summary.false_alarms
    if alarms is None:
        return []
    lines = alarm_lines(alarms, summary.margin)
    return _indented([*lines, *_histogram(alarms)])


def _histogram(alarms: FalseAlarms) -> Iterator[str]:
    """Each tenth of the p-values as a bar; even ones are all as long as the mark."""
    if not alarms.comparisons:
        return
    most = max(*alarms.bins, 1)
    bins = len(alarms.bins)
    for place, count in enumerate(alarms.bins):
        bar = "#" * round(_BAR * count / most)
        yield f"p {place / bins:.1f} to {(place + 1) / bins:.1f} {count:>5} {bar}"
    yield f"even: {alarms.comparisons / bins:.1f} in each"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
