"""The run as one HTML file that needs nothing else: no network, no other file.

Everything from outside is stripped of controls and escaped by the template engine, and the page
forbids itself every script but its own, so that a name or a log can only ever be read. The charts
of the whole run are drawn here; those of single comparisons when a reader opens them, from data in
the page. Loads jinja2 when a page is made.
"""

from __future__ import annotations

import re
import shlex
from itertools import chain
from typing import TYPE_CHECKING, Final

from torchyard.core.comparison import Verdict
from torchyard.reports.block_shapes import BASES
from torchyard.reports.charts import numbers_of, speedup_axis
from torchyard.reports.comparison_part import comparison_part
from torchyard.reports.fact_rows import fact_rows
from torchyard.reports.guard_text import guard_rows
from torchyard.reports.html_page import asset, fingerprint, template_engine
from torchyard.reports.launch_effects import blocks_by_workload
from torchyard.reports.method_text import method_sentences
from torchyard.reports.page_frame import SHARED_SCRIPTS, Frame
from torchyard.reports.plain_text import one_line
from torchyard.reports.roofline_part import roofline_part
from torchyard.reports.suite_charts import (
    ROWS_NAMED,
    forest_description,
    forest_spec,
    verdicts_spec,
)
from torchyard.reports.suite_means import left_out, suite_means
from torchyard.reports.suite_rows import pass_text, suite_rows
from torchyard.reports.summary import verdict_counts
from torchyard.reports.vega import (
    MISSING,
    chart_bases,
    charts_available,
    inline_chart,
    lazy_chart,
)
from torchyard.reports.vega_runtime import packed_runtime, runtime_link, runtime_script
from torchyard.reports.wording import MARKS, number_text, title_of
from torchyard.results.revision import revision_of_run
from torchyard.results.run_reader import Run

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

__all__ = ["to_html"]

_COMMIT: Final = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28}\b")
_STATES = {
    "running": "This run is still going. What follows is what it has so far.",
    "interrupted": "This run was interrupted. What follows is what it had by then.",
    "failed": "This run failed. What follows is what it had by then.",
}


def to_html(run: Run, *, frame: Frame | None = None) -> str:
    """The whole page; with a frame it is one of many."""
    blocks = blocks_by_workload(run)
    budget, comparisons = run.study.budget, run.comparisons
    confidence = 1 - budget.alpha
    means = suite_means(comparisons, confidence=confidence)
    suites = suite_rows(comparisons, confidence=confidence)
    parts = [
        comparison_part(comparison, index, blocks, budget.precision_goal)
        for index, comparison in enumerate(comparisons, start=1)
    ]
    anchors = {id(part["comparison"]): part["anchor"] for part in parts}
    charts = charts_available()
    drawn_later = charts and any(part["charts"] for part in parts)
    roofline = roofline_part(run)
    style = asset("report.css") + asset("run.css") + asset("charts.css")
    style += asset("roofline.css") if roofline else ""
    style += frame.style if frame else ""
    script = asset("report.js") + (asset("charts.js") if drawn_later else "")
    inlined = [runtime_script()] if drawn_later and frame is None else []
    scripts = [asset("theme.js"), script, *inlined]
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=one_line(run.study.name),
            run=run,
            warning=_warning(run),
            revision=_revision(run),
            notes=_notes(run),
            means=means,
            counts=verdict_counts(comparisons),
            passed=pass_text(
                sum(one.passed for one in comparisons),
                len(comparisons),
                sum(one.not_checked for one in comparisons),
            ),
            suites=suites,
            left_out=[(one, reason, anchors[id(one)]) for one, reason in left_out(comparisons)],
            forest=_forest(run) if charts and any(map(numbers_of, comparisons)) else "",
            verdict_bars=inline_chart(
                verdicts_spec(suites),
                title="Verdicts of each suite",
                description="Share of each verdict by suite; the numbers are in the table above",
            )
            if charts and len(suites) > 1
            else "",
            forest_named=sum(map(bool, map(numbers_of, comparisons))) <= ROWS_NAMED,
            roofline=roofline,
            charts_missing="" if charts else MISSING,
            confidence=f"{100 * confidence:g}%",
            margin=budget.margin,
            axis=speedup_axis([1.0, *chain.from_iterable(map(numbers_of, comparisons))]),
            rows=parts,
            choices=_choices(run),
            method=method_sentences(run.study),
            command=_command(run),
            machine=fact_rows(run.info.get("machine") or {}),
            guards=guard_rows(run),
            targets=[
                (one_line(str(name)), fact_rows(facts))
                for name, facts in (run.info.get("targets") or {}).items()
            ],
            lazy_chart=lazy_chart,
            bases=chart_bases(BASES) if drawn_later else "",
            runtime=_runtime(frame) if drawn_later else "",
            navigation=frame.navigation if frame else "",
            shared_scripts=f" {SHARED_SCRIPTS}" if frame else "",
            style=style,
            theme_script=scripts[0],
            script=script,
            style_hash=fingerprint(style),
            script_hashes=[fingerprint(one) for one in scripts],
        )
    )


def _runtime(frame: Frame | None) -> Markup:
    return packed_runtime() if frame is None else runtime_link(frame.runtime)


def _environment() -> Environment:
    environment = template_engine()
    environment.filters["number"] = number_text
    environment.globals["mark"] = lambda verdict: MARKS[verdict]
    environment.globals["title_of"] = title_of
    environment.globals["pass_text"] = pass_text
    return environment


def _forest(run: Run) -> Markup:
    budget = run.study.budget
    means = suite_means(run.comparisons, confidence=1 - budget.alpha)
    return inline_chart(
        forest_spec(run.comparisons, means, margin=budget.margin),
        title="",
        description=forest_description(run.comparisons, margin=budget.margin),
    )


def _choices(run: Run) -> list[tuple[str, str, list[str]]]:
    """What the table can be filtered by: only what tells rows apart."""
    found: dict[str, list[str]] = {
        "verdict": [
            verdict.value for verdict in Verdict if verdict in verdict_counts(run.comparisons)
        ],
        "suite": [one_line(one.workload.suite) for one in run.comparisons],
        "mode": [one.workload.mode for one in run.comparisons],
        "candidate": [one_line(one.candidate) for one in run.comparisons],
    }
    return [
        (name, name.capitalize(), values)
        for name, all_values in found.items()
        if len(values := list(dict.fromkeys(all_values))) > 1
    ]


def _command(run: Run) -> str:
    if run.info.get("shared"):
        return "left out for sharing"
    return shlex.join(str(word) for word in run.info.get("command") or ()) or "not recorded"


def _revision(run: Run) -> str:
    """As short as people write it; the whole of it is among the facts of the targets."""
    return _COMMIT.sub(r"\1", one_line(revision_of_run(run.info, run.study)))


def _notes(run: Run) -> list[str]:
    kept = run.info.get("notes")
    return [one_line(str(note)) for note in kept] if isinstance(kept, list) else []


def _warning(run: Run) -> str:
    text = _STATES.get(run.state, "")
    busy = sum(one.busy for one in run.comparisons)
    if busy:
        of = f"{busy} of {len(run.comparisons)} comparisons were"
        text += (
            f" The machine was busy: {of} disturbed most of the time. Do not believe their numbers."
        )
    if run.torn_lines:
        noun = "record was" if run.torn_lines == 1 else "records were"
        text += f" {run.torn_lines} {noun} cut off by a kill and left out."
    return text.strip()
