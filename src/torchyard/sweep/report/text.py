"""The terminal report of a sweep summary, and the wording that all formats share.

The terminal report shows each suite, the extremes, and everything that did not pass. The shared
wording has no escaping and no layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from textwrap import indent
from typing import Final

from torchyard.bench.report.suite_summary import pass_text
from torchyard.core.comparison import Interval, Verdict
from torchyard.core.short_names import short_texts
from torchyard.core.units import format_count, format_percent
from torchyard.presentation.safe_text import aligned, one_line
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
_INCONCLUSIVE_FACTOR: Final = 3.0
"""The sweep is too small to confirm the error rate if rates above this multiple are possible."""


def sweep_line(summary: SweepSummary) -> str:
    """Return progress, shard, creation time and revision of the sweep in one line."""
    parts = [f"{summary.cells_finished} of {summary.cells} cells finished"]
    if summary.shard[1] > 1:
        parts.append(f"shard {summary.shard[0]} of {summary.shard[1]}")
    if summary.created:
        parts.append(f"planned {one_line(summary.created)}")
    if summary.revision:
        parts.append(f"revision {one_line(summary.revision)}")
    if summary.null:
        parts.append("A/A")
    return ", ".join(parts)


def setup_line(summary: SweepSummary) -> str:
    """Return the machines and the versions of torch in one line; empty before the first result."""
    torch = f"torch {' and '.join(summary.torch)}" if summary.torch else ""
    return one_line("; ".join(part for part in (*summary.machines, torch) if part))


def group_name(key: GroupKey) -> str:
    """Return a name such as `kernels inference float32`; `total` for a total."""
    return " ".join(one_line(part) for part in (key.suite, key.mode, key.precision) if part) or (
        "total"
    )


def row_name(row: SweepRow) -> str:
    """Return a name such as `kernels/matmul inference · bfloat16 · inductor`."""
    return " · ".join(one_line(part) for part in (row.workload, row.precision, row.candidate))


def end_text(end: End) -> str:
    """Return the end of a row as text."""
    return end.replace("-", " ")


def end_mark(row: SweepRow) -> str:
    """Return the mark of a row; rows that did not pass are marked as failed."""
    if row.end == "passed" or row.verdict is Verdict.UNTRUSTED:
        return MARKS[row.verdict]
    is_open = row.end in ("not-finished", "provisional")
    return MARKS[Verdict.UNDECIDED if is_open else Verdict.FAILED]


def ends_text(group: SweepGroup) -> str:
    """Return the rows that did not pass by reason, such as `1 wrong, 2 out of memory`."""
    return ", ".join(f"{count} {end_text(end)}" for end, count in group.ends if end != "passed")


def passed_text(group: SweepGroup) -> str:
    """Return the pass rate, such as `5 of 6 (83%)`."""
    return pass_text(group.passed, group.workloads)


def mean_cell(mean: MeanSpeedup | None, *, untrusted: int = 0) -> str:
    """Return `1.052x [1.031, 1.073] of 5`, with the number of excluded untrusted rows."""
    rest = f" ({untrusted} untrusted excluded)" if untrusted else ""
    if mean is None:
        return ABSENT + rest
    scope = ", one launch" if mean.scope == "processes" else ""
    number = f"{number_text(mean.speedup)}x {_interval(mean.interval)}"
    return f"{number} of {mean.workloads}{scope}{rest}"


def speedup_cell(row: SweepRow) -> tuple[str, str]:
    """Return speedup and interval; in parentheses if untrusted or wrong, with a tilde if provisional."""
    if row.speedup is None:
        return ABSENT, ""
    texts = [f"{number_text(row.speedup)}x", _interval(row.interval) if row.interval else ""]
    if not row.trusted or row.end == "wrong":
        texts = [f"({text})" if text else "" for text in texts]
    if row.end == "provisional":
        texts[0] = f"~{texts[0]}"
    return texts[0], texts[1]


def provisional_text(summary: SweepSummary) -> str:
    """Return the heading of the provisional rows."""
    count = f"{len(summary.provisional)} of {len(summary.rows)}"
    return f"provisional ({count}; not in means, corrections and verdicts)"


def not_wrong_lines(groups: Sequence[SweepGroup]) -> list[str]:
    """Return means that include results which could not be verified, for groups that have any."""
    return [
        f"including unverified results: {group_name(group.key)}, "
        f"{one_line(group.key.candidate)}: {mean_cell(group.not_wrong)}"
        for group in groups
        if group.not_wrong is not None
    ]


def compile_text(group: SweepGroup) -> str:
    """Return the compile times, such as `median 21.4 s, sum 107 s`."""
    if group.compile_median_s is None or group.compile_sum_s is None:
        return ABSENT
    return f"median {seconds_text(group.compile_median_s)}, sum {seconds_text(group.compile_sum_s)}"


def memory_text(group: SweepGroup) -> str:
    """Return the memory ratio candidate / baseline, such as `0.981x of 5`."""
    if group.memory_ratio is None:
        return ABSENT
    return f"{number_text(group.memory_ratio)}x of {group.memory_rows}"


def break_even_text(group: SweepGroup) -> str:
    """Return the break-even point, such as `median 420 iterations of 4`."""
    if group.break_even_median is None:
        return ABSENT
    return f"median {_rounded(group.break_even_median)} iterations of {group.break_even_rows}"


def seconds_text(duration_s: float) -> str:
    """Format a duration as `21.4 s`, `3.5 m` or `2.1 h`."""
    for unit, size in (("h", 3600.0), ("m", 60.0)):
        if duration_s >= size * _MINUTE_S / 60.0:
            return f"{duration_s / size:.1f} {unit}"
    return f"{duration_s:.3g} s"


def verdict_lines(summary: SweepSummary) -> list[str]:
    """Return the number of comparisons by verdict, and the correction."""
    counts = Counter(row.verdict for row in summary.rows)
    verdicts = ", ".join(
        f"{MARKS[verdict]} {counts[verdict]} {verdict.value}"
        for verdict in Verdict
        if counts[verdict]
    )
    total = len(summary.rows)
    counted = f"{format_count(total, 'comparison')}: {verdicts}" if total else "no comparisons"
    return [counted, *family_lines(summary)]


def family_lines(summary: SweepSummary) -> list[str]:
    """Describe the effect of the correction for multiple comparisons."""
    tested = [row for row in summary.rows if row.p_adjusted is not None]
    if not tested:
        return []
    demoted = sum(row.demoted for row in tested)
    text = (
        f"p-values are corrected for {len(tested)} comparisons of the sweep "
        f"(Benjamini-Hochberg at {format_percent(summary.alpha)})"
    )
    if demoted:
        text += f"; {format_count(demoted, 'verdict')} became undecided by the correction"
    return [text]


def alarm_lines(alarms: FalseAlarms, margin: float) -> list[str]:
    """Describe the false alarm rate of the machine; the conclusion first."""
    total, nominal = alarms.comparisons, format_percent(alarms.alpha)
    if not total:
        return ["No comparison has a test: the false alarm rate is unknown."]
    rate = format_percent(alarms.significant / total)
    lines = [_answer(alarms)]
    lines.append(
        f"{alarms.significant} of {total} A/A comparisons have a confidence interval that excludes "
        f"1: {rate} {_percents(alarms.rate)}; the nominal rate is {nominal}."
    )
    inside = alarms.significant - alarms.called
    text = f"{alarms.called} of them {_were(alarms.called)} reported as faster or slower"
    if inside:
        text += f" ({inside} more {_were(inside)} within the margin of {format_percent(margin)})"
    lines.append(text + f"; {alarms.called_adjusted} after the correction for all comparisons.")
    lines.append(
        "p-values should be uniform or shifted towards 1 (comparisons that stopped early as the "
        f"same); the largest excess of small p-values is {format_percent(alarms.excess)}, which "
        f"occurs by chance in {_chance(alarms.excess_chance)} of sweeps."
    )
    if alarms.shared_baselines:
        lines.append(
            "Several candidates share one baseline, so false alarms are correlated and the interval "
            "is too narrow."
        )
    return lines


def _answer(alarms: FalseAlarms) -> str:
    nominal = format_percent(alarms.alpha)
    count = f"{alarms.significant} or more false alarms in {alarms.comparisons} comparisons"
    evidence = f"at that rate, {count} occur in {_chance(alarms.chance)} of sweeps"
    limit = format_percent(alarms.rate.high)
    if alarms.within and alarms.rate.high > _INCONCLUSIVE_FACTOR * alarms.alpha:
        return (
            f"The results are consistent with the nominal error rate of {nominal}, but "
            f"{alarms.comparisons} comparisons are too few to confirm it: {evidence}, and rates up "
            f"to {limit} cannot be ruled out."
        )
    if alarms.within:
        return (
            f"This machine is within the nominal error rate of {nominal}: {evidence}. "
            f"Rates above {limit} can be ruled out."
        )
    if alarms.chance > alarms.excess_chance:
        evidence = (
            f"small p-values are too frequent, which occurs by chance in "
            f"{_chance(alarms.excess_chance)} of sweeps"
        )
    return (
        f"This machine is NOT within the nominal error rate of {nominal}: {evidence}. Do not trust "
        "small differences; `torchyard machine audit` finds sources of noise."
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
    """Round to three significant digits."""
    return f"{float(f'{number:.3g}'):,.0f}".replace(",", " ")


def reasons_of(rows: Sequence[SweepRow]) -> list[tuple[SweepRow, str]]:
    """Return rows that did not pass, each with its reason on one line."""
    return [(row, one_line(row.reason) or "no reason recorded") for row in rows]


def as_selected(row: SweepRow) -> SweepRow:
    """Return the row with the interval that is corrected for selection."""
    return replace(row, interval=row.selected_interval or row.interval)


def selection_text(rows: Sequence[SweepRow]) -> str:
    """Return the level of the intervals of the best or worst rows: ` (99.2% intervals, ...)`."""
    levels = {row.selected_interval.confidence for row in rows if row.selected_interval}
    if len(levels) != 1:
        return ""
    return f" ({100 * levels.pop():.4g}% intervals, corrected for selection)"


_BAR: Final = 30


def with_short_names(summary: SweepSummary) -> SweepSummary:
    """Return the summary with short names of user files, for people."""
    labels = short_texts(row.workload for row in summary.rows)

    def shown(rows: Sequence[SweepRow]) -> tuple[SweepRow, ...]:
        return tuple(replace(row, workload=labels[row.workload]) for row in rows)

    return replace(
        summary,
        rows=shown(summary.rows),
        best=shown(summary.best),
        worst=shown(summary.worst),
    )


def sweep_text(summary: SweepSummary) -> str:
    """Render the summary as plain text, without control characters from its input."""
    summary = with_short_names(summary)
    setup = setup_line(summary)
    lines = [one_line(summary.name), sweep_line(summary), *([setup] if setup else []), ""]
    lines += [f"! {one_line(doubt)}" for doubt in summary.doubts]
    lines += [""] * bool(summary.doubts)
    if summary.false_alarms is not None:
        alarms = [*alarm_lines(summary.false_alarms, summary.margin)]
        alarms += _histogram(summary.false_alarms)
        lines += ["false alarm rate of this machine", indent("\n".join(alarms), "  "), ""]
    groups = [*summary.groups, *summary.totals]
    heads = ("suite", "candidate", "passed", "common workloads", "all passed", "did not pass")
    lines.append(aligned([heads, *_named_once(_group_cells(group) for group in groups)]))
    lines += not_wrong_lines(groups)
    costs = [group for group in groups if group.compiled or group.memory_rows]
    if costs:
        cost_heads = ("cost", "candidate", "compilation", "memory", "break-even")
        cost_rows = _named_once(cost_cells(group) for group in costs)
        lines += ["", aligned([cost_heads, *cost_rows])]
    lines += ["", *verdict_lines(summary)]
    for heading, rows in (("fastest", summary.best), ("slowest", summary.worst)):
        if rows:
            lines += [
                "",
                f"{heading}{selection_text(rows)}:",
                indent(aligned([_row_cells(as_selected(row)) for row in rows]), "  "),
            ]
    provisional = summary.provisional
    if provisional:
        cells = [(*_row_cells(row)[1:], one_line(row.reason)) for row in provisional]
        lines += ["", f"{provisional_text(summary)}:", indent(aligned(cells), "  ")]
    failed = summary.not_passed
    if failed:
        lines += ["", f"did not pass ({len(failed)} of {len(summary.rows)}):", *_failures(failed)]
    return "\n".join(lines) + "\n"


def _group_cells(group: SweepGroup) -> tuple[str, ...]:
    return (
        group_name(group.key),
        one_line(group.key.candidate),
        passed_text(group),
        mean_cell(group.common, untrusted=group.untrusted),
        mean_cell(group.own, untrusted=group.untrusted),
        ends_text(group),
    )


def cost_cells(group: SweepGroup) -> tuple[str, ...]:
    """Return the cells of a group in the table of costs."""
    return (
        group_name(group.key),
        one_line(group.key.candidate),
        compile_text(group),
        memory_text(group),
        break_even_text(group),
    )


def _named_once(rows: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Omit a name that is the same as in the row above."""
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


def _histogram(alarms: FalseAlarms) -> Iterator[str]:
    """Return the histogram of the p-values as bars."""
    if not alarms.comparisons:
        return
    most = max(*alarms.bins, 1)
    bins = len(alarms.bins)
    for place, count in enumerate(alarms.bins):
        bar = "#" * round(_BAR * count / most)
        yield f"p {place / bins:.1f} to {(place + 1) / bins:.1f} {count:>5} {bar}".rstrip()
    yield f"uniform: {alarms.comparisons / bins:.1f} in each bin"
