"""What a profile of values looked at, and what it left out: nothing is skipped silently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from torchyard.core.units import format_bytes, format_percent
from torchyard.core.values import ValueProfile
from torchyard.reports.values_wording import clipped
from torchyard.values.prices import steps_looked_at

__all__ = ["notes_of_profile", "scope_rows"]

_LEFT_OUT_BYTES: Final = {
    "small_bytes": "in tensors below {least}: counted, not looked at",
    "not_seen_bytes": "in dtypes or layouts that are not looked into",
    "not_compared_bytes": "overwritten while the memory for copies ({memory}) was full: "
    "not compared with what was there before",
}
_LEFT_OUT_COUNTS: Final = {
    "not_strided": "sparse, nested and other tensors without plain memory",
    "not_deep": "operators that could not be followed inside",
    "not_tried": "operators with findings that were not tried again; the notes say why",
}
_SAID: Final = frozenset({*_LEFT_OUT_BYTES, *_LEFT_OUT_COUNTS})
_SAID_TOTALS: Final = frozenset(
    {
        "operators",
        "written_bytes",
        "steps_left_out",
        "steps_surveyed",
        "trials",
        "trials_ms",
        # What ran elsewhere is told by notes, with names.
        "other_threads",
        "other_thread_operators",
        "loader_processes",
        "child_processes",
    }
)
_MOST_NOTES: Final = 50
_MOST_NOTE: Final = 500


def scope_rows(profile: ValueProfile) -> list[tuple[str, str]]:
    """Name and text: first what was looked at, then what was not."""
    counts, options = profile.counts, profile.options
    written = counts.get("written_bytes", 0)
    rows = [("steps", _steps(profile)), ("depth", _depth(options))]
    rows.append(("operators", f"{counts.get('operators', 0):,}, {format_bytes(written)} written"))
    sampling = ", ".join(_sampling(options))
    rows.append(("sampling", sampling or "none: every step, all of every tensor"))
    rows += [("left out", text) for text in _left_out(counts, options, written)]
    if profile.findings_left_out:
        text = f"{profile.findings_left_out:,} sightings of more causes than are kept"
        rows.append(("left out", f"{text}: the findings are not all"))
    if counts.get("trials"):
        took = f"{counts.get('trials_ms', 0) / 1000:,.1f} s"
        tried = f"{counts['trials']:,} operator{_s(counts['trials'])}"
        rows.append(("trials", f"{tried} tried again, in {took}"))
    if options.get("prove") is False:
        rows.append(("proofs", "not asked for: nothing here can be more than likely"))
    if options.get("approximate"):
        rows.append(("approximate", "findings that hold only nearly are opinions, not proofs"))
    if options.get("graph") is False or not profile.flow.nodes:
        rows.append(("flow graph", "not recorded"))
    device = f"{clipped(profile.device)}, {profile.threads} thread"
    rows.append(("torch", f"{clipped(profile.torch)} on {device}{_s(profile.threads)}"))
    return rows


def notes_of_profile(profile: ValueProfile) -> list[str]:
    """What the profiler had to say, bounded."""
    shown = [clipped(note, _MOST_NOTE) for note in profile.notes[:_MOST_NOTES]]
    more = len(profile.notes) - len(shown)
    return [*shown, f"and {more:,} more notes"] if more else shown


def _steps(profile: ValueProfile) -> str:
    looked = steps_looked_at(profile)
    left_out = profile.counts.get("steps_left_out", 0)
    text = f"{looked:,} looked at"
    if profile.steps == 1:
        text = "none that were seen: the whole program counts as one"
    surveyed = profile.counts.get("steps_surveyed", 0)
    if surveyed:
        text += f": {looked - surveyed:,} closely, {surveyed:,} surveyed for what changed"
    if left_out:
        text += f", {left_out:,} left out"
    return f"{text}, in {profile.seconds:,.1f} s" if profile.seconds else text


def _depth(options: Mapping[str, Any]) -> str:
    if options.get("deep"):
        return "deep: also the operators inside operators written in C++"
    return "fast: operators as the program calls them, not what they do inside (--deep)"


def _sampling(options: Mapping[str, Any]) -> Iterator[str]:
    every, first = _whole(options, "every"), _whole(options, "first_steps")
    last, most = _whole(options, "last_step"), _whole(options, "most_bytes")
    if every > 1:
        yield f"one step in {every}"
    if first:
        yield "the first step left out" if first == 1 else f"the first {first} steps left out"
    if last:
        yield f"nothing after step {last}"
    if most:
        yield f"tensors above {format_bytes(most)} by a part of them"


def _left_out(counts: Mapping[str, int], options: Mapping[str, Any], written: int) -> Iterator[str]:
    least = format_bytes(_whole(options, "least_bytes"))
    memory = format_bytes(_whole(options, "memory_bytes"))
    for name, text in _LEFT_OUT_BYTES.items():
        size = counts.get(name, 0)
        if size:
            share = f" ({format_percent(size / written)})" if written else ""
            yield f"{format_bytes(size)}{share} {text.format(least=least, memory=memory)}"
    for name, text in _LEFT_OUT_COUNTS.items():
        if counts.get(name, 0):
            yield f"{counts[name]:,} {text}"
    # A newer worker may count more than we know.
    for name, count in sorted(counts.items()):
        if count and name not in _SAID and name not in _SAID_TOTALS:
            yield f"{clipped(name).replace('_', ' ')}: {count:,}"


def _whole(options: Mapping[str, Any], name: str) -> int:
    value = options.get(name, 0)
    return value if isinstance(value, int) and value > 0 else 0


def _s(number: int) -> str:
    return "" if number == 1 else "s"
