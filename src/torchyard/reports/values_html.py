"""A profile of values as one HTML file that needs nothing else: no network, no other file.

Everything from outside is cut, stripped of controls and escaped by the template engine; the graph's
data is JSON that cannot end its element. The page forbids itself every script but its own.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from torchyard import __version__
from torchyard.core.units import format_bytes, format_duration, format_percent
from torchyard.core.values import Certainty, SourceExcerpt, ValueFinding, ValueProfile
from torchyard.reports.flow_page import flow_page
from torchyard.reports.html_page import asset, fingerprint, json_for_script, template_engine
from torchyard.reports.values_evidence import HEIGHT, WIDTH, evidence_of
from torchyard.reports.values_scope import notes_of_profile, scope_rows
from torchyard.reports.values_wording import (
    MARKS,
    bytes_per_step,
    bytes_text,
    chain_text,
    clipped,
    code_spans,
    detail_text,
    mended_text,
    operator_text,
    ordered,
    place_text,
    result_text,
    state_sentence,
    steps_text,
    suggestion_text,
    summary_sentence,
    time_text,
    title_of_program,
)
from torchyard.reports.wording import ABSENT
from torchyard.values.pattern_texts import pattern_text
from torchyard.values.source_excerpts import AROUND_FINDING, with_excerpts

__all__ = ["values_html"]

MOST_FINDINGS: Final = 300
"""With everything about them; the page says how many more there are."""
_SCRIPTS: Final = ("values.js", "flow_items.js", "flow_picture.js", "flow.js")
_MOST_TESTS: Final = 40
_MOST_MODULES: Final = 24
_BAR: Final = 96

_Lines = Mapping[tuple[str, int], str]


def values_html(profile: ValueProfile) -> str:
    """The whole page."""
    profile = with_excerpts(profile)
    found = ordered(profile)
    shown = found[:MOST_FINDINGS]
    lines = _lines(profile.excerpts)
    flow = flow_page(profile, shown, lines)
    style = asset("report.css") + asset("values.css")
    script = "".join(map(asset, _SCRIPTS))
    items = flow.picture.items if flow.picture is not None else {}
    scale = _Scale(profile)
    engine = template_engine()
    engine.globals["spans"] = code_spans
    return engine.get_template("values.html.j2").render(
        title=title_of_program(profile),
        profile=profile,
        warning=state_sentence(profile),
        summary=summary_sentence(profile),
        figures=_figures(profile),
        findings=[
            _card(number, finding, profile, lines, items.get(finding.node), scale)
            for number, finding in enumerate(shown, start=1)
        ],
        left_out=len(found) - len(shown),
        patterns=_patterns(shown),
        certainties=[
            {"name": word.value, "mark": MARKS[word], "count": count}
            for word in Certainty
            if (count := sum(finding.proof.certainty is word for finding in shown))
        ],
        flow=flow,
        flow_json=json_for_script(flow.picture.data) if flow.picture is not None else "",
        scope=scope_rows(profile),
        notes=notes_of_profile(profile),
        command=shlex.join(clipped(word, 400) for word in profile.program[:100]),
        version=__version__,
        histogram_size=(WIDTH, HEIGHT),
        bar=_BAR,
        style=style,
        script=script,
        style_hash=fingerprint(style),
        script_hash=fingerprint(script),
    )


class _Scale:
    """How long the bar of a finding is: by time where that was measured, else by bytes."""

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
    """Name, number and what it means."""
    findings = profile.findings
    proven = sum(one.proof.certainty is Certainty.PROVEN for one in findings)
    wasted = sum(bytes_per_step(one, profile) for one in findings)
    figures = [
        ("findings", f"{len(findings):,}", f"{proven:,} proven"),
        ("bytes wasted in a step", format_bytes(wasted), _of_written(profile)),
    ]
    saving = profile.saving
    if saving is None:
        figures.append(("estimated saving", ABSENT, "the time of findings was not measured"))
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
    return f"{format_percent(min(1.0, wasted / written))} of all that was written, at most"


def _patterns(findings: list[ValueFinding]) -> list[dict[str, Any]]:
    """Those that were found, with what they mean."""
    return [
        {"name": clipped(name, 60), "count": count, "text": pattern_text(name)}
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
    """What the template shows of one finding, as text and numbers."""
    operator = operator_text(finding.operator, finding.path)
    place = place_text(finding.place)
    return {
        "number": number,
        "pattern": clipped(finding.pattern, 60),
        "certainty": finding.proof.certainty.value,
        "mark": MARKS[finding.proof.certainty],
        "operator": operator,
        "place": place,
        "file": clipped(finding.place.file, 400),
        "bar": scale(finding),
        "bytes": bytes_text(finding, profile),
        "time": time_text(finding.worth),
        "detail": detail_text(finding),
        "suggestion": suggestion_text(finding),
        "why": clipped(finding.proof.why, 500),
        "tests": [
            {
                "name": clipped(test.test, 60),
                "passed": test.passed,
                "result": result_text(test),
                "inputs": clipped(test.inputs, 100),
                "poison": clipped(test.poison, 60),
                "detail": clipped(test.detail, 300),
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
    seen = f"{finding.count:,} times in {steps:,} step{'s' if steps != 1 else ''}"
    rows = [
        ("seen", f"{seen} ({steps_text(finding.steps)})" if steps else seen),
        ("wasted", f"{bytes_text(finding, profile)} per step, {_of_all(finding)}"),
        ("time", chain_text(worth) if worth.saving is not None else time_text(worth)),
    ]
    if worth.operator_ns is not None and worth.wasted_ns is not None:
        wasted, whole = format_duration(worth.wasted_ns), format_duration(worth.operator_ns)
        rows.append(("one call", f"{wasted} of {whole}"))
    if mended_text(worth):
        said = mended_text(worth).removeprefix("mended, ")
        rows.append(("mended", f"{said}, measured in pairs"))
    rows += [("method", clipped(worth.method, 300))] if worth.method else []
    rows += [("not measured", clipped(worth.unavailable, 300))] if worth.unavailable else []
    if finding.place.function:
        rows.append(("function", clipped(finding.place.function, 100)))
    if finding.overload:
        rows.append(("overload", clipped(finding.overload, 100)))
    if finding.modules:
        rows.append(("modules", _modules(finding.modules)))
    return rows


def _of_all(finding: ValueFinding) -> str:
    wasted = f"{format_bytes(finding.bytes_wasted)} in all"
    if finding.bytes_written > 0:
        wasted += f"; {format_bytes(finding.bytes_written)} were written there"
    return wasted


def _modules(modules: Mapping[str, int]) -> str:
    named = [f"{clipped(name, 80)} ({count:,})" for name, count in modules.items()]
    more = len(named) - _MOST_MODULES
    return ", ".join(named[:_MOST_MODULES]) + (f" and {more} more" if more > 0 else "")


def _lines(excerpts: tuple[SourceExcerpt, ...]) -> dict[tuple[str, int], str]:
    return {
        (excerpt.file, excerpt.first_line + offset): line
        for excerpt in excerpts
        for offset, line in enumerate(excerpt.lines)
    }


def _source(finding: ValueFinding, lines: _Lines) -> list[tuple[int, str, bool]]:
    """Number, text, and whether it is the line of the finding."""
    place = finding.place
    around = range(place.line - AROUND_FINDING, place.line + AROUND_FINDING + 1)
    found = [
        (number, lines[place.file, number].expandtabs(4)[:200], number == place.line)
        for number in around
        if (place.file, number) in lines
    ]
    return found if any(here for *_, here in found) else []
