"""The HTML report of a run: one file without network access or other files.

The template engine escapes all text, and the page forbids every script but its own. Charts of the
whole run are drawn here; those of single comparisons when a reader opens them, from data in the
page. A page that is one of many (`Frame`, on the dashboard) has links to the others and shares the
chart runtime with them. Also describes the method in sentences, from the settings that the run had.
Loads jinja2 when a page is rendered.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from torchyard.bench.report.block_charts import BASES
from torchyard.bench.report.comparison_detail import comparison_part
from torchyard.bench.report.generation import HEADINGS, generations
from torchyard.bench.report.shown_run import row_command, shown_run
from torchyard.bench.report.suite_charts import (
    ROWS_NAMED,
    forest_description,
    forest_spec,
    verdicts_spec,
)
from torchyard.bench.report.suite_summary import (
    SuiteRow,
    answer_text,
    excluded_from_means,
    guard_rows,
    pass_text,
    suite_means,
    suite_rows,
    verdict_counts,
)
from torchyard.bench.roofline.chart import roofline_part
from torchyard.core.comparison import Verdict
from torchyard.core.short_names import with_short_names
from torchyard.core.study import DEFAULT_NAME, Study
from torchyard.core.units import format_count, format_percent
from torchyard.machine.identity import machine_text
from torchyard.presentation.chart_layout import axis_numbers, numbers_of, speedup_axis
from torchyard.presentation.html_page import asset, fingerprint, template_engine
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.tables import fact_rows
from torchyard.presentation.vega import (
    MISSING,
    chart_bases,
    charts_available,
    inline_chart,
    lazy_chart,
    packed_runtime,
    runtime_link,
    runtime_script,
)
from torchyard.presentation.vega_spec import Spec
from torchyard.presentation.wording import (
    MARKS,
    about_duration,
    number_text,
    rough_duration,
    title_of,
)
from torchyard.results.run_reader import Run, revision_of_run

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


SHARED_SCRIPTS: Final = "'self' file:"
"""Script sources of a page that shares scripts: its own origin. Browsers that treat every local file
as a separate origin need `file:`, which allows nothing on a web server."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Navigation and shared files of a page that is one of many."""

    navigation: Markup
    style: str
    """Style of the navigation, added to the page's own."""
    runtime: str
    """URL, relative to the page, of the file with the text of `vega.runtime_script`."""


def method_sentences(study: Study) -> list[str]:
    """Describe how the study was measured, one sentence per aspect."""
    budget, settings = study.budget, study.settings
    confidence = f"{100 * (1 - budget.alpha):g}%"
    stop = (
        f"Measuring stopped at a verdict with a confidence interval within "
        f"±{format_percent(budget.precision_goal)}, or after {about_duration(budget.time_s)}."
        if budget.precision_goal
        else f"Every comparison used its whole time budget of {about_duration(budget.time_s)}."
    )
    sentences = [
        (
            "Each launch started fresh processes. Variants that differ only in backend shared a "
            "process, the model and the inputs."
        ),
        (
            f"Baseline and candidate ran in pairs of short blocks (about {settings.block_s:g} s), in "
            "random order, after warm-up. Times exclude compilation."
        ),
        (
            "The speedup is baseline time divided by candidate time: above 1 the candidate is faster. "
            "Each launch contributes the median over its pairs; the speedup is their geometric mean."
        ),
        (
            f"The {confidence} confidence interval includes process-to-process variation: the launch is "
            "the independent unit, because the speed of the same code varies between processes. With a "
            "single launch, the interval applies to those processes only, which a note states."
        ),
        (
            f"Same means that the whole interval lies within ±{format_percent(budget.margin)} of no "
            "difference. Undecided means that the data are consistent with more than one verdict."
        ),
        stop,
        (
            "p-values are two-sided, valid under early stopping (group sequential design), and adjusted "
            "for the number of comparisons (Benjamini-Hochberg)."
        ),
        (
            "Pairs that the guards found disturbed (waiting for a core, page faults, steal time, "
            "throttled or lower clocks) were dropped and counted."
        ),
    ]
    if settings.check_accuracy:
        sentences.append(
            "The candidate's results were compared with the baseline's for the same inputs and seeds, "
            "and with a float64 reference if it fit in memory. A candidate whose error exceeds what "
            "rounding explains is wrong, and never reported as faster."
        )
    else:
        sentences.append("Results were not compared: the accuracy check was disabled.")
    return sentences


_UTC: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:[\d.]+Z")
_COMMIT: Final = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28}\b")
_STATES = {
    "running": "This run is in progress. The page shows the results so far.",
    "interrupted": "This run was interrupted. The page shows the results until then.",
    "failed": "This run failed. The page shows the results until then.",
}


def to_html(run: Run, *, frame: Frame | None = None) -> str:
    """Return the page of a run; with a frame, it links to other pages."""
    run = shown_run(run)
    blocks = run.blocks_by_workload()
    budget, comparisons = run.study.budget, run.comparisons
    confidence = 1 - budget.alpha
    means = suite_means(comparisons, confidence=confidence)
    suites = suite_rows(comparisons, confidence=confidence)
    parts = [
        {
            **comparison_part(comparison, index, blocks, budget.precision_goal),
            "repeat_command": row_command(run, index),
        }
        for index, comparison in enumerate(comparisons, start=1)
    ]
    anchors = {id(part["comparison"]): part["anchor"] for part in parts}
    plotted = sum(map(bool, map(numbers_of, comparisons)))
    charts = charts_available()
    drawn_later = charts and any(part["charts"] for part in parts)
    roofline = roofline_part(run)
    style = asset("report.css") + asset("run.css") + asset("charts.css")
    style += asset("roofline.css") if roofline else ""
    style += frame.style if frame else ""
    script = asset("report.js") + (asset("charts.js") if drawn_later else "")
    inlined = [runtime_script()] if drawn_later and frame is None else []
    scripts = [asset("theme.js"), script, *inlined]
    runtime: Markup | str = ""
    if drawn_later:
        runtime = packed_runtime() if frame is None else runtime_link(frame.runtime)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=run_title(run),
            answer=answer_text(comparisons, confidence=confidence, margin=budget.margin),
            tone=comparisons[0].state.value if len(comparisons) == 1 else "",
            hardware=one_line(machine_text(run.info)),
            duration=_duration(run),
            started=_minute(run.info.get("started")),
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
            generated=generations(comparisons),
            generation_headings=HEADINGS,
            excluded=[
                (one, reason, anchors[id(one)]) for one, reason in excluded_from_means(comparisons)
            ],
            forests=_forests(run) if charts and plotted > 1 else [],
            verdict_bars=_verdict_bars(suites) if charts and len(suites) > 1 else [],
            forest_named=plotted <= ROWS_NAMED,
            roofline=roofline,
            charts_missing="" if charts else MISSING,
            confidence=f"{100 * confidence:g}%",
            margin=budget.margin,
            axis=speedup_axis([1.0, *axis_numbers(comparisons)]),
            rows=parts,
            columns=_columns(parts),
            choices=_choices(run),
            method=method_sentences(run.study),
            command=_command(run),
            machine=fact_rows(run.info.get("machine") or {}),
            guards=guard_rows(run),
            user_files=_user_files(run),
            targets=[
                (one_line(str(name)), fact_rows(facts))
                for name, facts in (run.info.get("targets") or {}).items()
            ],
            lazy_chart=lazy_chart,
            bases=chart_bases(BASES) if drawn_later else "",
            runtime=runtime,
            navigation=frame.navigation if frame else "",
            shared_scripts=f" {SHARED_SCRIPTS}" if frame else "",
            style=style,
            theme_script=scripts[0],
            script=script,
            style_hash=fingerprint(style),
            script_hashes=[fingerprint(one) for one in scripts],
        )
    )


def _user_files(run: Run) -> list[tuple[str, str]]:
    """Return the short name and the path of each user file."""
    workloads = run.study.workloads
    names = {
        one_line(shown.name): one_line(one.name)
        for shown, one in zip(with_short_names(workloads), workloads, strict=True)
        if shown.name != one.name
    }
    return list(names.items())


def _environment() -> Environment:
    environment = template_engine()
    environment.filters["number"] = number_text
    environment.globals["mark"] = lambda verdict: MARKS[verdict]
    environment.globals["title_of"] = title_of
    environment.globals["pass_text"] = pass_text
    return environment


def _forests(run: Run) -> list[tuple[str, Markup]]:
    """Return the forest plot for wide and for narrow screens, each with its class."""
    margin, alpha = run.study.budget.margin, run.study.budget.alpha
    means = suite_means(run.comparisons, confidence=1 - alpha)
    return _on_screens(
        partial(forest_spec, run.comparisons, means, margin=margin),
        description=forest_description(run.comparisons, margin=margin),
    )


def _verdict_bars(suites: Sequence[SuiteRow]) -> list[tuple[str, Markup]]:
    """Return the bars of verdicts for wide and for narrow screens, each with its class."""
    return _on_screens(
        partial(verdicts_spec, suites),
        title="Verdicts by suite",
        description="Share of each verdict by suite; the numbers are in the table above",
    )


def _on_screens(
    spec: Callable[..., Spec], *, description: str, title: str = ""
) -> list[tuple[str, Markup]]:
    screens = {"wide-screen": False, "narrow-screen": True}
    return [
        (name, inline_chart(spec(narrow=narrow), title=title, description=description))
        for name, narrow in screens.items()
    ]


_COLUMNS: Final = (
    ("label", "Workload"),
    ("candidate", "Candidate"),
    ("verdict", "Verdict"),
    ("speedup", "Speedup"),
    ("baseline", "Baseline time"),
    ("time", "Time"),
    ("compile", "Compile time"),
    ("memory", "Peak memory"),
    ("breaks", "Graph breaks"),
    ("p", "p"),
)
_NEEDED: Final = {"compile": "compile_s", "memory": "memory_bytes", "breaks": "break_count"}
"""Columns that need a number in some row."""


def _columns(parts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return key and title of the columns that have content."""
    several = len({part["candidate"] for part in parts}) != 1
    return {
        key: title
        for key, title in _COLUMNS
        if (several or key != "candidate")
        and (key not in _NEEDED or any(part[_NEEDED[key]] is not None for part in parts))
    }


def run_title(run: Run) -> str:
    """Return the name of the study; of an unnamed one, what it compared."""
    if run.study.name != DEFAULT_NAME:
        return one_line(run.study.name)
    names = [workload.label for workload in with_short_names(run.study.workloads)]
    what = names[0] if len(names) == 1 else format_count(len(names), "workload")
    candidates = ", ".join(variant.name for variant in run.study.candidates)
    return one_line(f"{what}: {candidates} vs {run.study.baseline.name}")


def _minute(moment: object) -> str:
    """Return for example `2025-01-02 03:04 UTC`; other text unchanged."""
    text = one_line(str(moment or ""))
    return f"{text[:10]} {text[11:16]} UTC" if _UTC.fullmatch(text) else text


def _duration(run: Run) -> str:
    """Return the time from start to end; empty if it is unknown."""
    try:
        started, finished = (
            datetime.fromisoformat(str(run.info.get(key))) for key in ("started", "finished")
        )
        return rough_duration(max(0.0, (finished - started).total_seconds()))
    except (ValueError, TypeError):
        return ""


def _choices(run: Run) -> list[tuple[str, str, list[str]]]:
    """Return the filters of the table: columns with more than one value."""
    values_by_column: dict[str, list[str]] = {
        "verdict": [
            verdict.value for verdict in Verdict if verdict in verdict_counts(run.comparisons)
        ],
        "suite": [one_line(one.workload.suite) for one in run.comparisons],
        "mode": [one.workload.mode for one in run.comparisons],
        "candidate": [one_line(one.candidate) for one in run.comparisons],
    }
    return [
        (name, name.capitalize(), values)
        for name, all_values in values_by_column.items()
        if len(values := list(dict.fromkeys(all_values))) > 1
    ]


def _command(run: Run) -> str:
    if run.info.get("shared"):
        return "omitted for sharing"
    return shlex.join(str(word) for word in run.info.get("command") or ()) or "not recorded"


def _revision(run: Run) -> str:
    """Return the revision with commit hashes shortened; full hashes are in the target facts."""
    return _COMMIT.sub(r"\1", one_line(revision_of_run(run.info, run.study)))


def _notes(run: Run) -> list[str]:
    notes = run.info.get("notes")
    return [one_line(str(note)) for note in notes] if isinstance(notes, list) else []


def _warning(run: Run) -> str:
    text = _STATES.get(run.state, "")
    untrusted = sum(not one.trusted for one in run.comparisons)
    if untrusted:
        verb = "is" if untrusted == 1 else "are"
        text += (
            f" {untrusted} of {len(run.comparisons)} comparisons {verb} untrusted: do not use these"
            " numbers. They are shown in parentheses and excluded from means."
        )
    if run.torn_lines:
        noun = "record was" if run.torn_lines == 1 else "records were"
        text += f" {run.torn_lines} {noun} truncated when the run was killed, and omitted."
    return text.strip()
