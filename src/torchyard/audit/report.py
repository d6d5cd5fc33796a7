"""Format audits and the effect of quieting as text: verdict, numbers, disturbances, changes.

The wording is shared by the terminal and the HTML page.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent
from typing import Final

from torchyard.audit.model import (
    DETECTING_LAUNCHES,
    NOISY_MINUTES,
    Audit,
    AuditChange,
    Disturbance,
    Drift,
    EarlierSpread,
    QuietingEffect,
    Resolvable,
    Spread,
)
from torchyard.core.comparison import Interval
from torchyard.core.units import format_count, format_duration, format_percent
from torchyard.machine.load_monitor import SHORT_LIVED
from torchyard.machine.model import UNAVAILABLE
from torchyard.presentation.safe_text import aligned, one_line, shortened, wrapped
from torchyard.presentation.wording import ABSENT, about_duration, number_text

SHOWN_MINUTES: Final = (1, 5, 30)
_WHOLE_CORE: Final = 1.0
_AS_LONG: Final = 0.005


def verdict_sentence(audit: Audit) -> str:
    """Say in one sentence whether the machine is quiet enough."""
    if audit.complaints:
        return f"Too noisy: {', and '.join(audit.complaints)}."
    return f"Quiet enough: {NOISY_MINUTES} minutes resolve a difference of {_difference(audit)}."


def number_rows(audit: Audit) -> list[tuple[str, str]]:
    """Return the name and text of every number."""
    rows = [
        (f"resolves in {minutes} min", resolvable_text(audit.in_minutes(minutes)))
        for minutes in SHOWN_MINUTES
    ]
    rows += [
        ("within launches", spread_text(audit.within)),
        ("between launches", spread_text(audit.between)),
        ("without pairing", spread_text(audit.unpaired)),
        ("drift", drift_text(audit.drift)),
        ("A/A comparison", _sides_text(audit)),
        ("disturbed blocks", _dirty_text(audit)),
        ("measured", _measured_text(audit)),
    ]
    return rows


def resolvable_text(resolvable: Resolvable | None) -> str:
    """`2.1% [1.4%, 4.0%] with 66 launches`."""
    if resolvable is None:
        return "unknown: nothing was measured"
    if resolvable.difference is None:
        return f"unknown: {resolvable.launches} launches fit, or too few were measured"
    interval = percent_interval(resolvable.interval)
    return f"{format_percent(resolvable.difference)}{interval} with {resolvable.launches} launches"


def spread_text(spread: Spread) -> str:
    """`1.2% [0.9%, 1.6%]`."""
    if spread.sd is None:
        return "unknown: too few launches"
    return format_percent(spread.sd) + percent_interval(spread.interval)


def percent_interval(interval: Interval | None, *, signed: bool = False) -> str:
    """` [0.9%, 1.6%]`, with a leading blank, or a note that there is none."""
    if interval is None:
        return " (too few launches for a confidence interval)"
    ends = (format_percent(end, signed=signed) for end in (interval.low, interval.high))
    return f" [{', '.join(ends)}]"


def drift_text(drift: Drift | None) -> str:
    """`+0.3% per minute [-0.1%, +0.7%], 4% of the variance`."""
    if drift is None:
        return "unknown: too few launches"
    slope = format_percent(drift.per_minute, signed=True)
    interval = percent_interval(drift.interval, signed=True)
    text = f"{slope} per minute{interval}, {drift.explains:.0%} of the variance of blocks"
    return f"{text}; pairing cancels it" if drift.shown else text


def disturbance_text(disturbance: Disturbance) -> str:
    """`process cc1plus used 93% of a core, active in 88% of the blocks; those took 12.0% longer`."""
    text = f"{source_text(disturbance)}, active in {share_text(disturbance)} of the blocks"
    slower = slower_text(disturbance)
    return f"{text}; those took {slower}" if slower else text


def source_text(disturbance: Disturbance) -> str:
    """`process cc1plus used 93% of a core`."""
    what = one_line(disturbance.what)
    amount = _amount_text(disturbance)
    named = disturbance.kind in ("torchyard", "steal", "interrupt time")
    subject = what if named or disturbance.what == SHORT_LIVED else f"{disturbance.kind} {what}"
    verb = "occurred" if disturbance.unit == "per second" else "used"
    if disturbance.kind in ("steal", "interrupt time"):
        verb = "took"
    if disturbance.kind.startswith("waiting for"):
        subject, verb = what, f"was {one_line(disturbance.kind)}"
    if disturbance.kind in ("page moves", "swap"):
        subject, verb = "the kernel", f"counted {what}:"
    return f"{subject} {verb} {amount}"


def share_text(disturbance: Disturbance) -> str:
    """Format the share of affected blocks."""
    return f"{disturbance.share_of_blocks:.0%}"


def slower_text(disturbance: Disturbance) -> str:
    """`12.0% longer`; empty if unknown."""
    if disturbance.slower is None:
        return ""
    if abs(disturbance.slower) < _AS_LONG:
        return "as long as the others"
    word = "longer" if disturbance.slower >= 0 else "less time"
    return f"{format_percent(abs(disturbance.slower))} {word}"


_VERDICTS: Final = {"not told apart": "not significant"}
"""How verdicts are shown that audit files call otherwise."""


def change_rows(changes: tuple[AuditChange, ...]) -> list[tuple[str, str, str, str, str]]:
    """Return name, before, after, ratio with its confidence interval, and verdict of each change."""
    return [
        (
            one_line(change.name),
            ABSENT if change.before is None else format_percent(change.before),
            ABSENT if change.after is None else format_percent(change.after),
            _ratio_text(change),
            _VERDICTS.get(change.verdict, change.verdict),
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
    if disturbance.kind in ("page moves", "swap"):
        return f"{disturbance.amount:,.0f} per second"
    return f"{disturbance.amount:,.0f} times per second per core"


def _sides_text(audit: Audit) -> str:
    if audit.ratio is None:
        return "no result: no launch has a clean pair"
    interval = audit.ratio_interval
    ends = f" [{number_text(interval.low)}, {number_text(interval.high)}]" if interval else ""
    ratio = f"{number_text(audit.ratio)}x{ends}"
    if audit.false_alarm:
        return (
            f"{ratio}: FALSE POSITIVE, identical code was called {audit.verdict} (5% are expected)"
        )
    return f"{ratio}, verdict {audit.verdict}: no false positive"


def _dirty_text(audit: Audit) -> str:
    if not audit.dirty_blocks:
        return f"none of {audit.blocks}"
    reasons = ", ".join(f"{one_line(reason)} ({count})" for reason, count in audit.dirty)
    return f"{audit.dirty_blocks} of {audit.blocks}: {reasons}"


def _measured_text(audit: Audit) -> str:
    time = "" if audit.time_ns is None else f" ({format_duration(audit.time_ns)})"
    threads = format_count(audit.threads, "thread")
    cores = f" on CPUs {','.join(map(str, audit.cores))}" if audit.cores else ""
    return (
        f"{len(audit.launches)} launches and {audit.pairs} pairs in "
        f"{about_duration(audit.measured_s)}: {one_line(audit.kernel)}{time}, {threads}{cores}"
    )


_NAME_WIDTH: Final = 18
_NAME_LENGTH: Final = 32


def audit_text(audit: Audit, *, width: int = 100) -> str:
    """Format a whole audit."""
    lines = [verdict_sentence(audit)]
    if audit.interrupted:
        lines.append(f"Interrupted after {audit.measured_s:.0f} s.")
    lines.append("")
    for name, text in number_rows(audit):
        first, rest = f"{name:<{_NAME_WIDTH}} ", " " * (_NAME_WIDTH + 1)
        lines += _wrapped(text, width, first=first, rest=rest)
    lines.append("")
    if audit.disturbances:
        heading = "Noise sources (active at the same time; not proven to be the cause):"
        lines += wrapped(heading, width)
        shown_advice: set[str] = set()
        for disturbance in audit.disturbances:
            lines += _wrapped(disturbance_text(disturbance), width, first="  - ", rest="    ")
            if disturbance.advice and disturbance.advice not in shown_advice:
                lines += _wrapped(disturbance.advice, width, first="      ", rest="      ")
            shown_advice.add(disturbance.advice)
    else:
        lines.append("No noise source was detected.")
    for name, text in audit.watched:
        if text.startswith(UNAVAILABLE):
            lines += _wrapped(f"not monitored: {name}, {text}", width, rest="  ")
    for note in audit.notes:
        lines += _wrapped(note, width, first="note: ", rest="  ")
    if audit.assumptions:
        lines += ["", "Assumptions of the resolvable difference:"]
        for assumption in audit.assumptions:
            lines += _wrapped(assumption, width, first="  - ", rest="    ")
    return "\n".join(lines) + "\n"


def change_text(
    changes: tuple[AuditChange, ...],
    *,
    title: str,
    names: tuple[str, str] = ("before", "after"),
    differences: Sequence[str] = (),
    width: int = 100,
) -> str:
    """Format the changes between two audits as a table."""
    headings = ("spread", *names, f"{names[1]} / {names[0]}", "")
    lines = [one_line(title), indent(aligned([headings, *change_rows(changes)]), "  ")]
    if differences:
        lines.append("  other differences:")
        for difference in differences:
            lines += _wrapped(difference, width, first="  - ", rest="    ")
    return "\n".join(lines) + "\n"


def earlier_text(spreads: Sequence[EarlierSpread], *, width: int = 100) -> str:
    """Format the spread between launches of earlier comparisons as a table."""
    if not spreads:
        return "No earlier comparison in the results directory has three or more launches.\n"
    names = [
        [shortened(one_line(name), _NAME_LENGTH) for name in (one.machine, one.device, one.suite)]
        for one in spreads
    ]
    one_machine = len({machine for machine, *_ in names}) == 1
    title = (
        f"Spread between launches of earlier comparisons{f' on {names[0][0]}' if one_machine else ''} "
        f"(standard deviation; smallest difference that {DETECTING_LAUNCHES} launches detect):"
    )
    first = 1 if one_machine else 0
    headings = (
        *("machine", "device", "suite")[first:],
        *("comparisons", "launches", "launch SD", "with pair noise", "detectable"),
    )
    rows = [
        (
            *own[first:],
            *(str(one.comparisons), str(one.launches)),
            *map(format_percent, (one.launch_sd, one.observed_sd)),
            ABSENT if one.detectable is None else format_percent(one.detectable),
        )
        for one, own in zip(spreads, names, strict=True)
    ]
    table = aligned([headings, *rows], right=range(3 - first, len(headings)))
    return "\n".join([*wrapped(title, width), indent(table, "  ")]) + "\n"


def _wrapped(text: str, width: int, *, first: str = "", rest: str) -> list[str]:
    return wrapped(one_line(text), width, first=first, rest=rest)


_WIDTH: Final = 100
_LEGEND: Final = (
    "Plain is the same machine before quieting and after the restore. A ratio below 1 is quieter; it "
    "is significant if its 95% confidence interval lies below 1."
)
_MULTIPLE_TESTS: Final = "Of {rows} rows, about {chance:.1f} would be significant by chance alone."


def effects_text(effects: Sequence[QuietingEffect], *, user: bool) -> str:
    """Format the effects of quieting."""
    lines = [
        f"{one_line(effect.what).capitalize()}: {effect_sentence(effect, user=user)}"
        for effect in effects
    ]
    rows = sum(len(effect.changes) for effect in effects)
    caution = (
        f" {_MULTIPLE_TESTS.format(rows=rows, chance=0.05 * rows)}" if len(effects) > 1 else ""
    )
    lines += ["", *wrapped(_LEGEND + caution, _WIDTH)]
    for effect in effects:
        knobs = ", ".join(map(one_line, effect.written)) or "nothing"
        title = f"{effect.what} (changed: {knobs})"
        table = change_text(effect.changes, title=title, names=("plain", "quieted"))
        lines += ["", table.rstrip()]
        plain = " and ".join(map(_difference, effect.plain))
        resolves = f"{plain} plain, {_difference(effect.quieted)} quieted"
        lines.append(f"  resolves in {NOISY_MINUTES} minutes: {resolves}")
        if effect.unsteady:
            lines.append(
                f"  NOT PROVEN: the plain audits differ ({', '.join(effect.unsteady)}); "
                "the machine changed by itself"
            )
        lines += [
            f"  refused: {one_line(knob)}, because {one_line(reason)}"
            for knob, reason in effect.refused
        ]
    return "\n".join(lines) + "\n"


def effect_sentence(effect: QuietingEffect, *, user: bool) -> str:
    """Say how much noise remains, or that no effect was significant."""
    texts = [
        f"{one_line(change.name)}, {format_percent(change.ratio or 0.0)} of the spread remains"
        for change in effect.changes
        if change.verdict == "quieter"
    ]
    texts += [
        f"{one_line(change.name)}, the spread is {change.ratio or 0.0:.1f} times as large"
        for change in effect.changes
        if change.verdict == "noisier"
    ]
    if texts and effect.unsteady:
        return "; ".join(texts) + ", but the machine also changed by itself: not proven."
    if texts:
        return "; ".join(texts) + "."
    cause = "process settings have no effect" if user else "it has no effect"
    return f"no significant change: {cause}, or the audits were too short."


def _difference(audit: Audit) -> str:
    resolvable = audit.in_minutes(NOISY_MINUTES)
    if resolvable is None or resolvable.difference is None:
        return ABSENT
    return format_percent(resolvable.difference)
