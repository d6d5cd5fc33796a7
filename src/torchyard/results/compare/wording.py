"""The wording of a comparison of two sides, shared by all formats. No escaping, no layout.

The sides are called A and B. Verdicts are about B: faster means that B is faster than A.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, get_args

from torchyard.core.comparison import TIME_RATIO_TOLERANCE, UNTRUSTED
from torchyard.core.short_names import short_texts
from torchyard.core.units import format_count, format_duration, format_percent
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.wording import ABSENT, number_text, p_value_text, verdict_text
from torchyard.results.compare.model import (
    CrossComparison,
    CrossRow,
    CrossSide,
    SideNumbers,
    Support,
    Unpaired,
)

NO_VERDICT: Final = "no verdict"
LEGEND: Final = "ratio: time of A / time of B; above 1, B is faster. Verdicts are about B."


def with_short_names(comparison: CrossComparison) -> CrossComparison:
    """Return the comparison with short names of user files, for people."""
    labels = short_texts(
        [row.workload for row in comparison.rows] + [item.workload for item in comparison.unpaired]
    )
    return replace(
        comparison,
        rows=tuple(replace(row, workload=labels[row.workload]) for row in comparison.rows),
        unpaired=tuple(
            replace(item, workload=labels[item.workload]) for item in comparison.unpaired
        ),
    )


def row_title(row: CrossRow | Unpaired, *, variants: bool) -> str:
    """Return the workload, and the variants if there are several."""
    label = one_line(row.workload)
    if not variants:
        return label
    names = (row.one.variant, row.other.variant) if isinstance(row, CrossRow) else row.variants
    shown = [one_line(name) for name in names if name]
    return f"{label} · {' / '.join(dict.fromkeys(shown))}"


def side_lines(comparison: CrossComparison) -> list[tuple[str, str]]:
    """Return the descriptions of A and B."""
    return [("A", side_text(comparison.one)), ("B", side_text(comparison.other))]


def side_time(numbers: SideNumbers) -> str:
    """Return the time of one iteration."""
    return ABSENT if numbers.time_ns is None else format_duration(numbers.time_ns)


def side_speedup(numbers: SideNumbers) -> str:
    """Return the speedup over the side's own baseline."""
    if numbers.speedup is None:
        return ABSENT
    return _shown(f"{number_text(numbers.speedup)}x", trusted=numbers.trusted)


def ratio_text(row: CrossRow) -> tuple[str, str]:
    """Return the ratio and its interval; in parentheses if untrusted."""
    ratio = ABSENT
    if row.ratio is not None:
        ratio = _shown(f"{number_text(row.ratio)}x", trusted=row.trusted)
    if row.interval is None:
        return ratio, ABSENT if row.support == "not supported" else "no interval"
    ends = f"[{number_text(row.interval.low)}, {number_text(row.interval.high)}]"
    return ratio, _shown(ends, trusted=row.trusted)


def _shown(text: str, *, trusted: bool) -> str:
    return text if trusted else f"({text})"


def verdict_of_row(row: CrossRow) -> str:
    """Return the verdict with its mark, or that there is none."""
    return f"{ABSENT} {NO_VERDICT}" if row.verdict is None else verdict_text(row.verdict)


def p_of_row(row: CrossRow) -> str:
    """Return the adjusted p-value."""
    return p_value_text(row.p_value if row.p_adjusted is None else row.p_adjusted)


def notes_of_row(row: CrossRow) -> list[str]:
    """Return the notes of a row; reasons for no verdict come first."""
    notes = [f"{UNTRUSTED}: {one_line(reason)}" for reason in row.untrusted]
    notes += [one_line(reason) for reason in row.reasons]
    if row.support == "not supported":
        unpaired = "unpaired times, not interleaved"
        notes.append(f"the ratio is of {unpaired if row.basis == 'times' else row.basis}")
    elif _times_disagree(row):
        notes.append(
            "the ratio is of the speedups within each run; the times of two runs are not paired"
        )
    return notes


def _times_disagree(row: CrossRow) -> bool:
    """Return whether the quotient of the two times differs from the ratio."""
    one, other, ratio = row.one.time_ns, row.other.time_ns, row.ratio
    if not one or not other or not ratio:
        return False
    return abs(math.log(one / other / ratio)) > TIME_RATIO_TOLERANCE


def counts_text(comparison: CrossComparison) -> str:
    """Return text such as `5 rows: 3 with a common baseline, 2 not supported; 1 cannot be compared`."""
    rows = comparison.rows
    parts = [
        f"{count} {'with a ' * (support == 'common baseline')}{support}"
        for support in get_args(Support)
        if (count := sum(row.support == support for row in rows))
    ]
    untrusted = sum(not row.trusted for row in rows)
    parts += [f"{untrusted} of them untrusted"] if untrusted else []
    text = f"{format_count(len(rows), 'row')}: {', '.join(parts)}" if rows else "no rows"
    unpaired = len(comparison.unpaired)
    return f"{text}; {unpaired} cannot be compared" if unpaired else text


def mean_text(comparison: CrossComparison) -> str:
    """Return the geometric mean over the supported rows."""
    mean = comparison.mean
    if mean is None:
        return "no mean: there are no supported rows"
    return (
        f"B vs A: geometric mean {number_text(mean.ratio)}x "
        f"[{number_text(mean.interval.low)}, {number_text(mean.interval.high)}] "
        f"over {format_count(mean.rows, 'supported row')}"
    )


def drift_text(comparison: CrossComparison) -> str:
    """Return the change of the baseline's time between two runs; empty if unknown."""
    if comparison.one.runs == comparison.other.runs:
        return ""
    shifts = [row.baseline_shift for row in comparison.rows if row.baseline_shift is not None]
    if not shifts:
        return ""
    mean = math.exp(math.fsum(math.log1p(shift) for shift in shifts) / len(shifts)) - 1.0
    return (
        f"mean change of the baseline's time from A to B: {format_percent(mean, signed=True)}; "
        "unpaired times of these runs are no more comparable than that"
    )


def assumption_text(comparison: CrossComparison) -> str:
    """Return the assumption of a common baseline; empty if no row uses it."""
    if not any(row.support == "common baseline" for row in comparison.rows):
        return ""
    return (
        "common baseline: each speedup is paired within its run; intervals allow for a variation "
        f"of {format_percent(comparison.session_sd)} between sessions (--session-spread)"
    )


def unpaired_text(item: Unpaired) -> str:
    """Return why the workload cannot be compared."""
    states = ["wrong results" if one == "wrong" else one for one in (item.one, item.other)]
    return one_line(item.why) or f"A: {states[0]}, B: {states[1]}"


def side_text(side: CrossSide) -> str:
    """Describe a side: its name, variants, torch, revision and machine."""
    runs = (
        side.runs[-1] if len(side.runs) == 1 else f"{len(side.runs)} runs, newest {side.runs[-1]}"
    )
    parts = [
        side.text if side.text in runs or runs in side.text else f"{side.text} ({runs})",
        ", ".join(side.variants),
        f"torch {side.torch}" if side.torch else "",
        f"revision {side.revision[:12]}" if side.revision else "",
        f"on {side.machine}" if side.machine else "",
    ]
    return " · ".join(one_line(part) for part in parts if part)
