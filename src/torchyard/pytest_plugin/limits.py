"""Check a comparison against a limit, and against the same test of a saved session.

A limit is exceeded only if the whole confidence interval is beyond it. What noise leaves undecided
passes with a note. Times that cannot be trusted for another reason, such as cached results, fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torchyard.api.result import THESE_PROCESSES, Comparison
from torchyard.core.comparison import NOISY, Verdict
from torchyard.core.units import format_percent
from torchyard.results.compare.compare_sides import compare_sides
from torchyard.results.compare.model import CrossRow
from torchyard.results.compare.sides import Rules, Side
from torchyard.results.gate.decision import Gate, run_gate
from torchyard.results.run_reader import Run, read_run


@dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of a check, with its text for the summary."""

    outcome: Literal["pass", "note", "fail"]
    text: str = ""


def could_not_decide(comparison: Comparison) -> bool:
    """Return whether noise, or a time for one launch only, left the comparison without a verdict.

    Such a result is not used, so measuring again does not change the error rate. An interval that
    contains the limit is a result: measuring again until it leaves the limit would raise the error rate.
    """
    if comparison.result.verdict is Verdict.WRONG:
        return False
    noisy = [reason.startswith(NOISY) for reason in comparison.result.untrusted]
    return all(noisy) if noisy else comparison.scope == THESE_PROCESSES


def check(comparison: Comparison, limit: float | None) -> Check:
    """Check the results and the slowdown of the candidate."""
    if comparison.result.verdict is Verdict.WRONG:
        return Check(outcome="fail", text=f"results {comparison.accuracy}")
    if not comparison.trusted:
        reasons = comparison.result.untrusted
        lasting = [reason for reason in reasons if not reason.startswith(NOISY)]
        return Check(
            outcome="fail" if lasting and limit is not None else "note",
            text=f"cannot be trusted: {(lasting or reasons)[0]}",
        )
    if limit is None:
        return Check(outcome="pass")
    text = format_percent(limit)
    if comparison.interval is None or comparison.scope == THESE_PROCESSES:
        why = "no interval" if comparison.interval is None else "the time allowed one launch only"
        return Check(outcome="note", text=f"limit {text} not checked: {why}")
    lowest_speedup = 1.0 / (1.0 + limit)
    low, high = comparison.interval
    if high < lowest_speedup:
        return Check(
            outcome="fail",
            text=f"slower than the baseline by more than the limit {text}",
        )
    if low >= lowest_speedup:
        return Check(outcome="pass", text=f"within the limit {text}")
    return Check(outcome="note", text=f"undecided: the interval contains the limit {text}")


def check_change(
    comparison: Comparison, name: str, limit: float | None, *, saved_as: str, runs: Sequence[Run]
) -> Check:
    """Check the change of the speedup since a saved session."""
    earlier = tuple(
        run for run in runs if any(row.workload.name == name for row in run.comparisons)
    )
    if not earlier or comparison.run is None:
        return Check(outcome="note", text=f"not in the baseline {saved_as}")
    one = Side(text=f"the baseline {saved_as}", runs=earlier)
    other = Side(text="this session", runs=(read_run(comparison.run),))
    change = compare_sides(one, other, Rules())
    since = f"since {saved_as}"
    if not change.rows:
        return Check(outcome="note", text=f"{since}: {change.unpaired[0].why}")
    row = change.rows[0]
    if row.untrusted or row.support == "not supported":
        reason = (*row.untrusted, *row.reasons)[0]
        return Check(outcome="note", text=f"{since} {_change_text(row)}, not supported: {reason}")
    if limit is None:
        return Check(outcome="pass", text=f"{since} {_change_text(row)}")
    standing = run_gate(change, Gate(max_slowdown=limit)).rows[0].standing
    text = f"{since} {_change_text(row)} of time"
    shown = format_percent(limit)
    if standing == "crossed":
        return Check(outcome="fail", text=f"{text}, beyond the limit {shown}")
    if standing == "kept":
        return Check(outcome="pass", text=f"{text}, within the limit {shown}")
    return Check(outcome="note", text=f"{text}, undecided: the interval contains the limit {shown}")


def _change_text(row: CrossRow) -> str:
    """Return the change of the time, such as `+12.5% [+9.4%, +15.5%]`."""
    if not row.ratio:
        return "no number"
    text = format_percent(1.0 / row.ratio - 1.0, signed=True)
    if row.interval is None:
        return text
    ends = (1.0 / row.interval.high - 1.0, 1.0 / row.interval.low - 1.0)
    low, high = (format_percent(end, signed=True) for end in ends)
    return f"{text} [{low}, {high}]"
