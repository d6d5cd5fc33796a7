"""The table and its summary in Markdown, for pull requests and notes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from torchyard.reports.guard_text import blocks_text, unread_guards
from torchyard.reports.plain_text import one_line
from torchyard.reports.suite_means import left_out, suite_means
from torchyard.reports.suite_rows import SuiteRow, pass_text, suite_rows
from torchyard.reports.summary import counts_text, mean_text
from torchyard.reports.wording import (
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

__all__ = ["escaped", "to_markdown"]

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~!$&])")
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
    """A table that reads well as text too."""
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
            speedup_text(comparison.estimate),
            p_text(comparison.estimate),
            verdict_text(comparison.verdict),
            pairs_text(comparison.estimate),
        )
        lines.append("| " + " | ".join(escaped(cell) for cell in cells) + " |")
    lines += ["", escaped(counts_text(run.comparisons))]
    means = suite_means(run.comparisons, confidence=1 - run.study.budget.alpha)
    lines += [""] * bool(means) + [f"- {escaped(mean_text(mean))}" for mean in means]
    lines += _suite_table(suite_rows(run.comparisons, confidence=1 - run.study.budget.alpha))
    sections = {
        "Not in the mean": [(item, reason) for item, reason in left_out(run.comparisons)],
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
    unread = unread_guards(run)
    if unread:
        lines += ["", "**Guards that did not read**", ""]
        lines += [f"- {escaped(name)}: {escaped(text)}" for name, text in unread]
    return "\n".join(lines) + "\n"


def _suite_table(rows: Sequence[SuiteRow]) -> list[str]:
    """What each suite says; nothing when there is only one."""
    if len(rows) < 2:  # noqa: PLR2004 - two suites, or two candidates
        return []
    lines = ["", "| suite | candidate | geometric mean | passed |", "| --- | --- | ---: | ---: |"]
    for row in rows:
        mean = row.mean
        said = (
            f"{number_text(mean.speedup)}x "
            f"[{number_text(mean.interval.low)}, {number_text(mean.interval.high)}]"
            if mean
            else "none"
        )
        cells = (row.suite, row.candidate, said, pass_text(row.passed, row.total, row.not_checked))
        lines.append("| " + " | ".join(escaped(cell) for cell in cells) + " |")
    return lines


def escaped(text: str) -> str:
    """Text that stays text: no markup, no HTML, no mention of a person."""
    marked = _SPECIAL.sub(r"\\\1", one_line(text))
    return marked.replace("\\<", "&lt;").replace("\\>", "&gt;").replace("@", "&#64;")
