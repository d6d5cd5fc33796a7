"""The wording of a comparison of two sides, shared by all formats. No escaping, no layout.

The sides are called A and B. Verdicts are about B: faster means that B is faster than A.
"""

from __future__ import annotations

import math
from typing import Final

from torchyard.core.comparison import TIMES_AGREE, UNTRUSTED
from torchyard.core.units import format_duration, format_percent
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.wording import ABSENT, number_text, verdict_text
from torchyard.results.compare.model import (
    Basis,
    CrossComparison,
    CrossRow,
    CrossSide,
    SideNumbers,
    SideState,
    Unpaired,
)

__all__ = [
    "LEGEND",
    "NO_VERDICT",
    "assumption_text",
    "counts_text",
    "drift_text",
    "mean_text",
    "notes_of_row",
    "p_of_row",
    "ratio_text",
    "row_title",
    "side_lines",
    "side_speedup",
    "side_text",
    "side_time",
    "state_text",
    "unpaired_text",
    "verdict_of_row",
]

NO_VERDICT: Final = "no verdict"
LEGEND: Final = "ratio: time of A over time of B; above 1, B is faster. Verdicts speak of B."
_SMALLEST_P: Final = 0.001
_BASES: Final[dict[Basis, str]] = {
    "pairs": "pairs",
    "speedups": "speedups",
    "times": "plain times, not interleaved",
}
_STATES: Final[dict[SideState, str]] = {
    "measured": "measured",
    "absent": "not there",
    "failed": "failed",
    "wrong": "wrong results",
    "no number": "no number",
}


def row_title(row: CrossRow | Unpaired, *, variants: bool) -> str:
    """The workload, and the variants where they are not the same in all rows."""
    label = one_line(row.workload)
    if not variants:
        return label
    names = (row.one.variant, row.other.variant) if isinstance(row, CrossRow) else row.variants
    shown = [one_line(name) for name in names if name]
    return f"{label} · {' / '.join(dict.fromkeys(shown))}"


def side_lines(comparison: CrossComparison) -> list[tuple[str, str]]:
    """A and B, each with what it is."""
    return [("A", side_text(comparison.one)), ("B", side_text(comparison.other))]


def side_time(numbers: SideNumbers) -> str:
    """The time of one iteration."""
    return ABSENT if numbers.time_ns is None else format_duration(numbers.time_ns)


def side_speedup(numbers: SideNumbers) -> str:
    """The speedup over its own baseline; its name is in the heading of the sides."""
    if numbers.speedup is None:
        return ABSENT
    return _shown(f"{number_text(numbers.speedup)}x", trusted=numbers.trusted)


def ratio_text(row: CrossRow) -> tuple[str, str]:
    """The ratio and its interval; in parentheses when they are not trusted."""
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
    """The verdict with its mark, or that there is none."""
    return f"{ABSENT} {NO_VERDICT}" if row.verdict is None else verdict_text(row.verdict)


def p_of_row(row: CrossRow) -> str:
    """The adjusted p-value."""
    value = row.p_value if row.p_adjusted is None else row.p_adjusted
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"<{_SMALLEST_P}" if value < _SMALLEST_P else f"{value:.3f}"


def notes_of_row(row: CrossRow) -> list[str]:
    """Everything a reader of the row must know, the reason for no verdict first."""
    notes = [f"{UNTRUSTED}: {one_line(reason)}" for reason in row.untrusted]
    notes += [one_line(reason) for reason in row.reasons]
    if row.support == "not supported":
        notes.append(f"the ratio is of {_BASES[row.basis]}")
    elif _times_disagree(row):
        notes.append(
            "the ratio is of speedups inside each run; times of two runs were not taken side by side"
        )
    return notes


def _times_disagree(row: CrossRow) -> bool:
    """Whether a reader who divides the two times gets another ratio."""
    one, other, ratio = row.one.time_ns, row.other.time_ns, row.ratio
    if not one or not other or not ratio:
        return False
    return abs(math.log(one / other / ratio)) > TIMES_AGREE


def counts_text(comparison: CrossComparison) -> str:
    """`5 workloads: 3 with a common baseline, 2 not supported; 1 cannot be compared`."""
    rows = comparison.rows
    supports = {
        "interleaved": "interleaved",
        "common baseline": "with a common baseline",
        "not supported": "not supported",
    }
    parts = [
        f"{count} {text}"
        for support, text in supports.items()
        if (count := sum(row.support == support for row in rows))
    ]
    untrusted = sum(not row.trusted for row in rows)
    parts += [f"{untrusted} of them untrusted"] if untrusted else []
    noun = "row" if len(rows) == 1 else "rows"
    text = f"{len(rows)} {noun}: {', '.join(parts)}" if rows else "no rows"
    left = len(comparison.unpaired)
    return f"{text}; {left} cannot be compared" if left else text


def mean_text(comparison: CrossComparison) -> str:
    """The geometric mean over the supported rows."""
    mean = comparison.mean
    if mean is None:
        return "no mean: no row is supported"
    noun = "row" if mean.rows == 1 else "rows"
    return (
        f"B against A: geometric mean {number_text(mean.ratio)}x "
        f"[{number_text(mean.interval.low)}, {number_text(mean.interval.high)}] "
        f"over {mean.rows} supported {noun}"
    )


def drift_text(comparison: CrossComparison) -> str:
    """How far the baseline itself moved between two runs; empty when that is not known."""
    if comparison.one.runs == comparison.other.runs:
        return ""
    shifts = [row.baseline_shift for row in comparison.rows if row.baseline_shift is not None]
    if not shifts:
        return ""
    mean = math.exp(math.fsum(math.log1p(shift) for shift in shifts) / len(shifts)) - 1.0
    return (
        f"the baseline's own time: {format_percent(mean, signed=True)} from A to B on average; "
        "plain times of these runs compare no better than that"
    )


def assumption_text(comparison: CrossComparison) -> str:
    """What a common baseline takes for granted; empty when no row rests on it."""
    if not any(row.support == "common baseline" for row in comparison.rows):
        return ""
    return (
        "common baseline: each speedup is paired inside its run; intervals allow for sessions that "
        f"differ by {format_percent(comparison.session_sd)} (--session-spread)"
    )


def unpaired_text(item: Unpaired) -> str:
    """Why there is nothing to compare."""
    return one_line(item.why) or f"A: {state_text(item.one)}, B: {state_text(item.other)}"


def state_text(state: SideState) -> str:
    """What a side has of a workload."""
    return _STATES[state]


def side_text(side: CrossSide) -> str:
    """What a side is: its name, variants, torch, revision and machine."""
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
