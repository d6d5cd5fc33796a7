"""A value profile as one self-contained HTML page: no network, no other file.

Everything from outside is truncated, stripped of control characters and escaped. Evidence is whatever a worker wrote,
perhaps a newer one: known keys are shown as what they are, and the rest as short texts.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from torchyard import __version__
from torchyard.core.units import format_bytes, format_duration, format_percent
from torchyard.presentation.html_page import asset, fingerprint, json_for_script, template_engine
from torchyard.presentation.wording import ABSENT
from torchyard.values.model import Certainty, ValueFinding, ValueProfile
from torchyard.values.pattern_texts import pattern_text
from torchyard.values.report import descriptions
from torchyard.values.report.flow_graph import LINKS
from torchyard.values.report.flow_picture import flow_page
from torchyard.values.report.process_texts import process_rows, where_text
from torchyard.values.source_excerpts import AROUND_FINDING, with_excerpts

WIDTH: Final = 320
HEIGHT: Final = 72
_MOST_BINS: Final = 64
_MOST_SAMPLE: Final = 16
_MOST_ROWS: Final = 12
_SHARES: Final = {
    "zero_share": "zeros",
    "unchanged_share": "unchanged",
    "zero_rows": "rows of zeros",
    "share": "most frequent value",
}
_SHOWN_APART: Final = frozenset({"sample", "histogram", "range", "sampled", "distinct"})


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A histogram bar; coordinates in a picture of WIDTH by HEIGHT."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Histogram with its limits and a text alternative."""

    bars: tuple[Bar, ...]
    low: str
    high: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence of a finding, formatted for the page."""

    rows: tuple[tuple[str, str], ...]
    sample: tuple[str, ...]
    histogram: Histogram | None


def evidence_of(evidence: Mapping[str, Any]) -> Evidence:
    """Format the parts of the evidence that have the expected form."""
    sample = evidence.get("sample")
    return Evidence(
        rows=tuple(_rows(evidence)[:_MOST_ROWS]),
        sample=tuple(_value(item) for item in sample[:_MOST_SAMPLE])
        if isinstance(sample, list)
        else (),
        histogram=_histogram(evidence.get("histogram")),
    )


def _rows(evidence: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for key, name in _SHARES.items():
        share = _finite(evidence.get(key))
        if share is not None:
            rows.append((name, format_percent(share)))
    values = evidence.get("range")
    if isinstance(values, list) and len(values) == 2:  # noqa: PLR2004
        rows.append(("range", f"{_value(values[0])} to {_value(values[1])}"))
    distinct, sampled = _finite(evidence.get("distinct")), _finite(evidence.get("sampled"))
    if distinct is not None:
        of = f" among {sampled:,.0f} sampled" if sampled is not None else ""
        rows.append(("distinct values", f"{distinct:,.0f}{of}"))
    for key, value in evidence.items():
        if key in LINKS and isinstance(value, dict):
            rows.append((LINKS[key], _operator(value)))
        elif key not in _SHOWN_APART and key not in _SHARES:
            rows.append((descriptions.clipped(str(key), 40).replace("_", " "), _value(value)))
    return rows


def _operator(value: Mapping[str, Any]) -> str:
    backward = ", backward" if value.get("backward") is True else ""
    place = f"{descriptions.short_file(str(value.get('file', '')))}:{descriptions.clipped(str(value.get('line', '')), 12)}"
    return f"{descriptions.operator_text(str(value.get('operator', '')))} at {place}{backward}"


def _histogram(value: Any) -> Histogram | None:
    if not isinstance(value, dict) or not isinstance(value.get("counts"), list):
        return None
    counts = [_finite(count) for count in value["counts"][:_MOST_BINS]]
    low, high = _finite(value.get("low")), _finite(value.get("high"))
    valid = [count for count in counts if count is not None and count >= 0]
    if low is None or high is None or len(valid) != len(counts) or not sum(valid):
        return None
    most, total, each = max(valid), sum(valid), WIDTH / len(valid)
    step = (high - low) / len(valid)
    bars = []
    for number, count in enumerate(valid):
        # Bins that are not empty stay visible.
        height = max(1.5, HEIGHT * count / most) if count else 0.0
        between = f"{_value(low + number * step)} to {_value(low + (number + 1) * step)}"
        bars.append(
            Bar(
                x=round(number * each, 2),
                y=round(HEIGHT - height, 2),
                width=round(each - 1, 2),
                height=round(height, 2),
                title=f"{between}: {count:,.0f}",
            )
        )
    fullest = max(range(len(valid)), key=lambda number: valid[number])
    label = (
        f"Histogram of {total:,.0f} values from {_value(low)} to {_value(high)}; "
        f"{format_percent(valid[fullest] / total)} of them are {bars[fullest].title.partition(':')[0]}"
    )
    return Histogram(bars=tuple(bars), low=_value(low), high=_value(high), label=label)


def _value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return descriptions.clipped(str(value), 80)
    if isinstance(value, int):
        return (
            descriptions.clipped(str(value), 24) if abs(value) < 10**18 else f"{float(value):.4g}"
        )
    return f"{value:.5g}"


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


MOST_FINDINGS: Final = 300
"""Maximum number of findings on the page."""
_SCRIPTS: Final = ("values.js", "flow_items.js", "flow_picture.js", "flow.js")
_MOST_TESTS: Final = 40
_MOST_MODULES: Final = 24
_MOST_PROCESSES: Final = 32
_BAR: Final = 96

_Lines = Mapping[tuple[str, int], str]


def values_html(profile: ValueProfile) -> str:
    """Return the page."""
    profile = with_excerpts(profile)
    findings = descriptions.ordered(profile)
    shown = findings[:MOST_FINDINGS]
    lines = {
        (excerpt.file, excerpt.first_line + offset): line
        for excerpt in profile.excerpts
        for offset, line in enumerate(excerpt.lines)
    }
    flow = flow_page(profile, shown, lines)
    style = asset("report.css") + asset("values.css")
    script = "".join(map(asset, _SCRIPTS))
    items = flow.picture.items if flow.picture is not None else {}
    scale = _Scale(profile)
    engine = template_engine()
    engine.globals["spans"] = descriptions.code_spans
    return engine.get_template("values.html.j2").render(
        title=descriptions.title_of_program(profile),
        profile=profile,
        warning=descriptions.state_sentence(profile),
        summary=descriptions.summary_sentence(profile),
        figures=_figures(profile),
        findings=[
            _card(number, finding, profile, lines, items.get(finding.node), scale)
            for number, finding in enumerate(shown, start=1)
        ],
        left_out=len(findings) - len(shown),
        patterns=_patterns(shown),
        certainties=[
            {"name": word.value, "mark": descriptions.MARKS[word], "count": count}
            for word in Certainty
            if (count := sum(finding.proof.certainty is word for finding in shown))
        ],
        flow=flow,
        flow_json=json_for_script(flow.picture.data) if flow.picture is not None else "",
        scope=descriptions.scope_rows(profile),
        notes=descriptions.notes_of_profile(profile),
        command=shlex.join(descriptions.clipped(word, 400) for word in profile.program[:100]),
        version=__version__,
        histogram_size=(WIDTH, HEIGHT),
        bar=_BAR,
        style=style,
        script=script,
        style_hash=fingerprint(style),
        script_hash=fingerprint(script),
    )


class _Scale:
    """Length of a finding's bar: by time if it was measured, else by bytes."""

    def __init__(self, profile: ValueProfile) -> None:
        self._timed = max((_time(one) for one in profile.findings), default=0.0)
        self._bytes = max((one.bytes_wasted for one in profile.findings), default=0)

    def __call__(self, finding: ValueFinding) -> float:
        if self._timed > 0:
            share = _time(finding) / self._timed
        else:
            share = finding.bytes_wasted / self._bytes if self._bytes > 0 else 0.0
        return round(_BAR * max(0.0, min(1.0, share)), 1)


def _time(finding: ValueFinding) -> float:
    time_ns = finding.worth.per_step_ns
    return time_ns if time_ns is not None and 0 < time_ns < float("inf") else 0.0


def _figures(profile: ValueProfile) -> list[tuple[str, str, str]]:
    """Return (name, number, explanation)."""
    findings = profile.findings
    proven = sum(one.proof.certainty is Certainty.PROVEN for one in findings)
    wasted = sum(descriptions.bytes_per_step(one, profile) for one in findings)
    figures = [
        ("findings", f"{len(findings):,}", f"{proven:,} proven"),
        ("wasted bytes per step", format_bytes(wasted), _of_written(profile)),
    ]
    saving = profile.saving
    if saving is None:
        figures.append(("estimated saving", ABSENT, "not measured"))
    else:
        low, high = format_percent(saving.low_share), format_percent(saving.high_share)
        bound = "no upper bound"
        if saving.bound_share is not None:
            bound = f"upper bound {format_percent(saving.bound_share)}"
        of = f"of a step ({saving.clock}), {bound}"
        figures.append(("estimated saving", low if low == high else f"{low} to {high}", of))
    return figures


def _of_written(profile: ValueProfile) -> str:
    written = profile.counts.get("written_bytes", 0)
    wasted = sum(one.bytes_wasted for one in profile.findings)
    if written <= 0:
        return "findings may overlap"
    return f"at most {format_percent(min(1.0, wasted / written))} of all written bytes"


def _patterns(findings: list[ValueFinding]) -> list[dict[str, Any]]:
    """Return the patterns on the page with their counts and texts."""
    return [
        {"name": descriptions.clipped(name, 60), "count": count, "text": pattern_text(name)}
        for name, count in _counted(finding.pattern for finding in findings)
    ]


def _counted(words: Any) -> list[tuple[Any, int]]:
    return sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))


def _card(
    number: int,
    finding: ValueFinding,
    profile: ValueProfile,
    lines: _Lines,
    item: int | None,
    scale: _Scale,
) -> dict[str, Any]:
    """Return the template variables of one finding."""
    operator = descriptions.operator_text(finding.operator, finding.path)
    place = descriptions.place_text(finding.place)
    return {
        "number": number,
        "pattern": descriptions.clipped(finding.pattern, 60),
        "certainty": finding.proof.certainty.value,
        "mark": descriptions.MARKS[finding.proof.certainty],
        "operator": operator,
        "place": place,
        "file": descriptions.clipped(finding.place.file, 400),
        "bar": scale(finding),
        "bytes": descriptions.bytes_text(finding, profile),
        "time": descriptions.time_text(finding.worth),
        "detail": descriptions.detail_text(finding),
        "suggestion": descriptions.suggestion_text(finding),
        "why": descriptions.clipped(finding.proof.why, 500),
        "tests": [
            {
                "name": descriptions.clipped(test.test, 60),
                "passed": test.passed,
                "result": descriptions.result_text(test),
                "inputs": descriptions.clipped(test.inputs, 100),
                "poison": descriptions.clipped(test.poison, 60),
                "detail": descriptions.clipped(test.detail, 300),
            }
            for test in finding.proof.tests[:_MOST_TESTS]
        ],
        "tests_left_out": max(0, len(finding.proof.tests) - _MOST_TESTS),
        "source": _source(finding, lines),
        "evidence": evidence_of(finding.evidence),
        "facts": _facts(finding, profile),
        "item": item,
    }


def _facts(finding: ValueFinding, profile: ValueProfile) -> list[tuple[str, str]]:
    worth, steps = finding.worth, len(finding.steps)
    count_text = f"{finding.count:,} times in {steps:,} step{'s' if steps != 1 else ''}"
    rows = [
        (
            "observed",
            f"{count_text} ({descriptions.steps_text(finding.steps)})" if steps else count_text,
        ),
        ("wasted", f"{descriptions.bytes_text(finding, profile)} per step, {_of_all(finding)}"),
        (
            "time",
            descriptions.chain_text(worth)
            if worth.saving is not None
            else descriptions.time_text(worth),
        ),
    ]
    if worth.operator_ns is not None and worth.wasted_ns is not None:
        wasted, whole = format_duration(worth.wasted_ns), format_duration(worth.operator_ns)
        rows.append(("one call", f"{wasted} of {whole}"))
    if descriptions.measured_text(worth):
        rows.append(("fix applied", descriptions.measured_text(worth)))
    if descriptions.fix_speedup_text(worth):
        speedup = descriptions.fix_speedup_text(worth).removeprefix("with the fix, ")
        rows.append(("with the fix", f"{speedup}, measured in pairs"))
    rows += [("method", descriptions.clipped(worth.method, 300))] if worth.method else []
    rows += (
        [("not measured", descriptions.clipped(worth.unavailable, 300))]
        if worth.unavailable
        else []
    )
    if finding.processes:
        rows.append(("processes", where_text(finding, profile)))
        rows += list(process_rows(finding, profile))[:_MOST_PROCESSES]
    if finding.place.function:
        rows.append(("function", descriptions.clipped(finding.place.function, 100)))
    if finding.overload:
        rows.append(("overload", descriptions.clipped(finding.overload, 100)))
    if finding.modules:
        rows.append(("modules", _modules(finding.modules)))
    return rows


def _of_all(finding: ValueFinding) -> str:
    wasted = f"{format_bytes(finding.bytes_wasted)} in total"
    if finding.bytes_written > 0:
        wasted += f" of {format_bytes(finding.bytes_written)} written"
    return wasted


def _modules(modules: Mapping[str, int]) -> str:
    named = [f"{descriptions.clipped(name, 80)} ({count:,})" for name, count in modules.items()]
    more = len(named) - _MOST_MODULES
    return ", ".join(named[:_MOST_MODULES]) + (f" and {more} more" if more > 0 else "")


def _source(finding: ValueFinding, lines: _Lines) -> list[tuple[int, str, bool]]:
    """Return (line number, text, whether it is the line of the finding)."""
    place = finding.place
    around = range(place.line - AROUND_FINDING, place.line + AROUND_FINDING + 1)
    excerpt = [
        (number, lines[place.file, number].expandtabs(4)[:200], number == place.line)
        for number in around
        if (place.file, number) in lines
    ]
    return excerpt if any(here for *_, here in excerpt) else []
