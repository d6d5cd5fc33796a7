"""Report the outcome of a gate as text, JSON, or a Markdown summary for a pull request."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from torchyard.core.records import encode
from torchyard.core.short_names import short_texts
from torchyard.core.units import format_count, format_percent
from torchyard.presentation.safe_text import aligned, escaped, one_line
from torchyard.presentation.tables import json_text, markdown_table
from torchyard.presentation.wording import ABSENT
from torchyard.results.compare.report import fact_table
from torchyard.results.compare.wording import side_text
from torchyard.results.gate.model import GateOutcome, GateRow, RowAction, Standing

GATE_SCHEMA: Final = "torchyard.gate"
GATE_SCHEMA_VERSION: Final = 1
"""Incremented when a key changes its meaning or is removed, not when keys are added."""

_MARKS: Final[dict[RowAction, str]] = {"fail": "❌", "warn": "⚠️", "pass": "✅", "untrusted": "🚫"}
"""Marks in Markdown; a terminal shows the word."""
_STANDING_TEXTS: Final[dict[Standing, tuple[str, str]]] = {
    "crossed": ("exceeds its limit", "exceed their limit"),
    "failing": ("fails or gives wrong results", "fail or give wrong results"),
    "untrusted": ("is untrusted", "are untrusted"),
    "unsupported": ("is not supported by the data", "are not supported by the data"),
    "missing": ("is missing", "are missing"),
    "undecided": ("is undecided", "are undecided"),
    "kept": ("keeps its limit", "keep their limit"),
    "no limit": ("has no limit", "have no limit"),
    "new": ("is new", "are new"),
}
"""Of one workload, and of several."""
_WHAT: Final = {
    "speedup": "time, from paired measurements",
    "time": "time",
    "compile": "compile time with a cold cache",
    "memory": "peak memory",
}
_PRIVATE: Final = frozenset({"host", "boot id"})
"""Facts that are not included in a public summary."""
_HEADINGS: Final = ("", "workload", "change", "limit", "standing")


def gate_verdict(outcome: GateOutcome) -> str:
    """Return one sentence, such as `gate failed: 1 workload exceeds its limit`."""
    word = gate_state(outcome)
    counts = outcome.counts()
    if word != "passed":
        action = "fail" if word == "failed" else "untrusted"
        counts = dict(Counter(row.standing for row in outcome.rows if row.action == action))
    texts = [
        f"{format_count(count, 'workload')} {_STANDING_TEXTS[standing][count > 1]}"
        for standing, count in counts.items()
    ]
    return f"gate {word}: {', '.join(texts)}"


def gate_state(outcome: GateOutcome) -> str:
    """Return `failed`, `untrusted` (neither passed nor failed) or `passed`."""
    if outcome.failed:
        return "failed"
    return "untrusted" if outcome.untrusted else "passed"


def with_short_names(outcome: GateOutcome) -> GateOutcome:
    """Return the outcome with short names of user files, for people."""
    labels = short_texts(row.workload for row in outcome.rows)
    rows = tuple(replace(row, workload=labels[row.workload]) for row in outcome.rows)
    return replace(outcome, rows=rows)


def gate_text(outcome: GateOutcome) -> str:
    """Render the outcome as plain text."""
    outcome = with_short_names(outcome)
    lines = [
        f"A, before  {side_text(outcome.one)}",
        f"B, now     {side_text(outcome.other)}",
        f"change of {_what(outcome)}",
        "",
    ]
    cells = [_HEADINGS, *((row.action, *_cells(outcome, row)) for row in outcome.rows)]
    lines.append(aligned(cells))
    notes = _notes(outcome)
    if notes:
        lines += ["", *(f"{_title(outcome, row)}: {text}" for row, text in notes)]
    blocking = [fact for fact in outcome.facts if fact.blocks]
    if blocking:
        lines += ["", "facts that differ and rule out a verdict:"]
        lines += [f"  {one_line(f'{fact.name}: {fact.one} | {fact.other}')}" for fact in blocking]
    return "\n".join([*lines, "", gate_verdict(outcome)]) + "\n"


def gate_markdown(outcome: GateOutcome) -> str:
    """Render a Markdown summary that a bot can post; names in it are escaped."""
    outcome = with_short_names(outcome)
    mark = {"failed": "❌", "untrusted": "🚫", "passed": "✅"}[gate_state(outcome)]
    verdict = gate_verdict(outcome)
    lines = [f"### {mark} {escaped(verdict[:1].upper() + verdict[1:])}", ""]
    rows = [(_MARKS[row.action], *map(escaped, _cells(outcome, row))) for row in outcome.rows]
    lines += [f"Change of {escaped(_what(outcome))}.", ""]
    lines += markdown_table(_HEADINGS, rows, right=(2, 3))
    notes = _notes(outcome)
    if notes:
        lines += ["", "<details><summary>Notes</summary>", ""]
        lines += [f"- {escaped(_title(outcome, row))}: {escaped(text)}" for row, text in notes]
        lines += ["", "</details>"]
    facts = [fact for fact in outcome.facts if fact.name not in _PRIVATE]
    if facts:
        lines += ["", "<details><summary>Facts that differ</summary>", ""]
        lines += [*fact_table(("fact", "before", "now"), facts), "", "</details>"]
    lines += [
        "",
        f"A, before: {escaped(side_text(outcome.one))}<br>B, now: {escaped(side_text(outcome.other))}",
    ]
    return "\n".join(lines) + "\n"


def gate_json(outcome: GateOutcome) -> str:
    """Render the outcome as JSON."""
    document = {
        "schema": GATE_SCHEMA,
        "schema_version": GATE_SCHEMA_VERSION,
        "passed": gate_state(outcome) == "passed",
        "state": gate_state(outcome),
        "verdict": gate_verdict(outcome),
        "counts": outcome.counts(),
        **encode(outcome),
    }
    return json_text(document)


def _cells(outcome: GateOutcome, row: GateRow) -> tuple[str, ...]:
    change = ABSENT if row.slowdown is None else format_percent(row.slowdown, signed=True)
    if row.low is not None and row.high is not None:
        low, high = (format_percent(end, signed=True) for end in (row.low, row.high))
        change += f" [{low}, {high}]"
    if row.standing == "untrusted" and row.slowdown is not None:
        change = f"({change})"
    limit = ABSENT if row.max_slowdown is None else format_percent(row.max_slowdown, signed=True)
    return (_title(outcome, row), change, limit, row.standing)


def _title(outcome: GateOutcome, row: GateRow) -> str:
    label = one_line(row.workload)
    several = len(outcome.other.variants) > 1
    name = one_line(row.variants[1] or row.variants[0])
    return f"{label} · {name}" if several and name else label


def _notes(outcome: GateOutcome) -> list[tuple[GateRow, str]]:
    return [
        (row, "; ".join(one_line(text) for text in row.why if text))
        for row in outcome.rows
        if any(row.why)
    ]


def _what(outcome: GateOutcome) -> str:
    has_interval = outcome.metric in {"speedup", "time"}
    interval = f", with {outcome.confidence:.0%} confidence interval" if has_interval else ""
    return _WHAT[outcome.metric] + interval
