"""How an audit is said: one wording for the terminal and the page. No escaping, no layout."""

from __future__ import annotations

from typing import Final

from torchyard.core.audit import (
    NOISY_MINUTES,
    Audit,
    AuditChange,
    Disturbance,
    Drift,
    Resolvable,
    Spread,
)
from torchyard.core.comparison import Interval
from torchyard.core.units import format_duration, format_percent
from torchyard.reports.plain_text import one_line
from torchyard.reports.wording import ABSENT, about_duration, number_text

__all__ = [
    "SHOWN_MINUTES",
    "change_rows",
    "disturbance_text",
    "drift_text",
    "number_rows",
    "percent_interval",
    "resolvable_text",
    "seen_text",
    "share_text",
    "slower_text",
    "spread_text",
    "verdict_sentence",
]

SHOWN_MINUTES: Final = (1, 5, 30)
_WHOLE_CORE: Final = 1.0
_AS_LONG: Final = 0.005


def verdict_sentence(audit: Audit) -> str:
    """The answer in one sentence."""
    if audit.complaints:
        return f"Too noisy: {', and '.join(audit.complaints)}."
    found = audit.in_minutes(NOISY_MINUTES)
    smallest = None if found is None else found.difference
    said = ABSENT if smallest is None else format_percent(smallest)
    return f"Good enough: {NOISY_MINUTES} minutes resolve a difference of {said}."


def number_rows(audit: Audit) -> list[tuple[str, str]]:
    """Name and text of every number."""
    rows = [
        (f"resolves in {minutes} min", resolvable_text(audit.in_minutes(minutes)))
        for minutes in SHOWN_MINUTES
    ]
    rows += [
        ("within launches", spread_text(audit.within)),
        ("between launches", spread_text(audit.between)),
        ("without pairing", spread_text(audit.unpaired)),
        ("drift", drift_text(audit.drift)),
        ("identical sides", _sides_text(audit)),
        ("disturbed blocks", _dirty_text(audit)),
        ("measured", _measured_text(audit)),
    ]
    return rows


def resolvable_text(found: Resolvable | None) -> str:
    """`2.1% [1.4%, 4.0%] with 66 launches`."""
    if found is None:
        return "unknown: nothing was measured"
    if found.difference is None:
        return f"unknown: {found.launches} launches fit, or too few were measured"
    interval = percent_interval(found.interval)
    return f"{format_percent(found.difference)}{interval} with {found.launches} launches"


def spread_text(spread: Spread) -> str:
    """`1.2% [0.9%, 1.6%]`."""
    if spread.sd is None:
        return "unknown: too few launches"
    return format_percent(spread.sd) + percent_interval(spread.interval)


def percent_interval(interval: Interval | None, *, signed: bool = False) -> str:
    """` [0.9%, 1.6%]`, with a blank in front; says when there is none."""
    if interval is None:
        return " (too few launches for an interval)"
    ends = (format_percent(end, signed=signed) for end in (interval.low, interval.high))
    return f" [{', '.join(ends)}]"


def drift_text(drift: Drift | None) -> str:
    """`+0.3% per minute [-0.1%, +0.7%], 4% of the variance`."""
    if drift is None:
        return "unknown: too few launches"
    slope = format_percent(drift.per_minute, signed=True)
    interval = percent_interval(drift.interval, signed=True)
    said = f"{slope} per minute{interval}, {drift.explains:.0%} of the variance of blocks"
    return f"{said}; pairs cancel it" if drift.shown else said


def disturbance_text(disturbance: Disturbance) -> str:
    """`process cc1plus took 93% of a core, beside 88% of the blocks; those took 12.0% longer`."""
    seen = seen_text(disturbance)
    said = f"{seen}, beside {share_text(disturbance)} of the blocks"
    slower = slower_text(disturbance)
    return f"{said}; those took {slower}" if slower else said


def seen_text(disturbance: Disturbance) -> str:
    """`process cc1plus took 93% of a core`."""
    what = one_line(disturbance.what)
    amount = _amount_text(disturbance)
    subject = {
        "torchyard": what,
        "steal": what,
        "interrupt time": what,
    }.get(disturbance.kind, f"{one_line(disturbance.kind)} {what}")
    verb = "came" if disturbance.unit == "per second" else "took"
    if disturbance.kind.startswith("waiting for"):
        subject, verb = what, f"was {one_line(disturbance.kind)}"
    if disturbance.kind in ("page moves", "swap"):
        subject, verb = "the kernel", f"counted {what}:"
    return f"{subject} {verb} {amount}"


def share_text(disturbance: Disturbance) -> str:
    """Share of blocks."""
    return f"{disturbance.share_of_blocks:.0%}"


def slower_text(disturbance: Disturbance) -> str:
    """`12.0% longer`; empty when it is not known."""
    if disturbance.slower is None:
        return ""
    if abs(disturbance.slower) < _AS_LONG:
        return "as long as others"
    word = "longer" if disturbance.slower >= 0 else "less"
    return f"{format_percent(abs(disturbance.slower))} {word}"


def change_rows(changes: tuple[AuditChange, ...]) -> list[tuple[str, str, str, str, str]]:
    """Name, before, after, ratio with its interval, and the word for it."""
    return [
        (
            one_line(change.name),
            ABSENT if change.before is None else format_percent(change.before),
            ABSENT if change.after is None else format_percent(change.after),
            _ratio_text(change),
            change.verdict,
        )
        for change in changes
    ]


def _ratio_text(change: AuditChange) -> str:
    if change.ratio is None:
        return ABSENT
    interval = change.interval
    ends = f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else " (no interval)"
    return f"{change.ratio:.2f}x{ends}"


def _amount_text(disturbance: Disturbance) -> str:
    if disturbance.unit == "cores":
        if disturbance.amount < _WHOLE_CORE:
            return f"{format_percent(disturbance.amount)} of a core"
        return f"{disturbance.amount:.1f} cores"
    if disturbance.unit == "of the time":
        return f"{format_percent(disturbance.amount)} of the time"
    per_core = "" if disturbance.kind in ("page moves", "swap") else " and core"
    return f"{disturbance.amount:,.0f} per second{per_core}"


def _sides_text(audit: Audit) -> str:
    if audit.ratio is None:
        return "not compared: no launch has a clean pair"
    interval = audit.ratio_interval
    ends = f" [{number_text(interval.low)}, {number_text(interval.high)}]" if interval else ""
    said = f"{number_text(audit.ratio)}x{ends}"
    if audit.false_alarm:
        return f"{said}: FALSE ALARM, one side was called {audit.verdict} (5% are expected)"
    return f"{said}, called {audit.verdict}: no false alarm"


def _dirty_text(audit: Audit) -> str:
    if not audit.dirty_blocks:
        return f"none of {audit.blocks}"
    reasons = ", ".join(f"{one_line(reason)} ({count})" for reason, count in audit.dirty)
    return f"{audit.dirty_blocks} of {audit.blocks}: {reasons}"


def _measured_text(audit: Audit) -> str:
    time = "" if audit.time_ns is None else f" ({format_duration(audit.time_ns)})"
    threads = f"{audit.threads} thread{'s' if audit.threads != 1 else ''}"
    cores = f" on cores {','.join(map(str, audit.cores))}" if audit.cores else ""
    return (
        f"{len(audit.launches)} launches and {audit.pairs} pairs in "
        f"{about_duration(audit.measured_s)}: {one_line(audit.kernel)}{time}, {threads}{cores}"
    )
