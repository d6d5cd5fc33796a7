"""Render pages: lists, runs, comparisons and histories, for the server and for files alike.

Uses the store and the templates; does not know requests and responses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torchyard import __version__
from torchyard.bench.report.page import Frame, to_html
from torchyard.bench.report.sharing import redacted_run
from torchyard.dashboard import lists
from torchyard.dashboard.links import PAGE_SIZE, CompareRequest, Links, ListRequest, series_query
from torchyard.dashboard.live_store import LiveStore
from torchyard.dashboard.overview import (
    Overview,
    read_overview,
    run_speedup,
    run_title,
    suites_spec,
)
from torchyard.errors import ResultsDamaged, TorchyardError
from torchyard.presentation.html_page import asset, template_engine
from torchyard.presentation.redaction import Redactor
from torchyard.presentation.safe_text import one_line, without_controls
from torchyard.presentation.tables import finite
from torchyard.presentation.vega import (
    VEGA_LITE,
    charts_available,
    lazy_chart,
    runtime_link,
    runtime_script,
)
from torchyard.presentation.wording import MARKS
from torchyard.results.compare.report import compare_values
from torchyard.results.directory import RECORD_FILES, RUN_FILE
from torchyard.results.history.changes import METHOD, METRIC_NAMES
from torchyard.results.model import RunEntry, RunFilter, Series
from torchyard.results.run_reader import read_run

_DIGEST_LETTERS: Final = 10
_SCRIPTS: Final = ("dashboard", "theme", "charts")


@cache
def script_name(stem: str) -> str:
    """Return the name of a script: `dashboard` (lists, live progress), `theme` or `charts`."""
    return f"{stem}-{_digest(asset(f'{stem}.js'))}.js"


@cache
def style_name() -> str:
    """Return the name of the style sheet."""
    return f"dashboard-{_digest(_style())}.css"


@cache
def runtime_name() -> str:
    """Return the name of the Vega script; empty if it is not installed."""
    # Named by versions, because creating it takes seconds.
    return f"vega-{version('vl-convert-python')}-{VEGA_LITE}.js" if charts_available() else ""


def asset_text(name: str) -> str:
    """Return the content of an asset; empty if there is none of that name."""
    return _assets().get(name, str)()


def asset_kinds() -> Mapping[str, str]:
    """Return the media types of all assets by name."""
    return {name: "text/css" if name.endswith(".css") else "text/javascript" for name in _assets()}


def _assets() -> dict[str, Callable[[], str]]:
    assets: dict[str, Callable[[], str]] = {
        style_name(): _style,
        **{script_name(stem): partial(asset, f"{stem}.js") for stem in _SCRIPTS},
    }
    if runtime_name():
        assets[runtime_name()] = runtime_script
    return assets


@cache
def _style() -> str:
    names = ("report.css", "charts.css", "compare.css", "dashboard_navigation.css", "dashboard.css")
    return "".join(map(asset, names))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LETTERS]


if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'"
)
"""Content security policy of pages; the server also sends it as a header."""
_KEPT_RUN_PAGES: Final = 8
_RUNS_TO_CHOOSE: Final = 200


class Pages:
    """Renders pages from one store."""

    def __init__(
        self, live_store: LiveStore, *, policy: str = PAGE_POLICY, cleaner: Redactor | None = None
    ) -> None:
        """With a cleaner, private text is redacted on all pages."""
        self._live_store = live_store
        self._policy = policy
        self._cleaner = cleaner
        self._engine = _engine(cleaner)

    def runs(self, links: Links, request: ListRequest, *, size: int = PAGE_SIZE) -> str:
        """The list of runs."""
        entries, paging = lists.run_table(self._live_store, request, size=size)
        typed = {**dict(request.texts), "since": request.since, "until": request.until}
        overview = (
            None if request.is_filtered or paging.page > 1 else read_overview(self._live_store)
        )
        entries_by_run = self._live_store.comparisons_of(entries)
        return self._render(
            "dashboard_runs.html.j2",
            links,
            here="runs",
            title="Runs",
            about=_count(paging, "run") + (" (filtered)" if request.is_filtered else ""),
            overview=overview,
            chart=self._suites_chart(overview),
            charts_script=script_name("charts"),
            runtime=runtime_link(links.asset(runtime_name())) if runtime_name() else "",
            runs=entries,
            titles={run.id: run_title(run, entries_by_run.get(run.id, ())) for run in entries},
            speedups={run.id: run_speedup(entries_by_run.get(run.id, ())) for run in entries},
            paging=paging,
            page_link=lambda page: links.runs(request.query(page="" if page == 1 else str(page))),
            request=request,
            fields=[
                (name, label, typed.get(name, ""), hint) for name, label, hint in lists.RUN_FIELDS
            ],
            nothing="No matching run."
            if request.is_filtered
            else "There is no run yet: start one with `torchyard bench`.",
            data=links.data("runs", request.query()),
        )

    def _suites_chart(self, overview: Overview | None) -> Markup | str:
        if overview is None or not overview.suites or not charts_available():
            return ""
        clean = self._cleaner.clean if self._cleaner else str
        return lazy_chart(
            finite(suites_spec(overview.suites), clean),
            title="",
            description="Geometric mean speedup of each suite over runs; the newest are in the table",
        )

    def workloads(self, links: Links, request: ListRequest, *, size: int = PAGE_SIZE) -> str:
        """The list of workloads."""
        rows, paging = lists.workload_table(self._live_store, request, size=size)
        typed = dict(request.texts)
        return self._render(
            "dashboard_workloads.html.j2",
            links,
            here="workloads",
            title="Workloads",
            about=f"{_count(paging, 'series')}: workload, candidate, baseline and machine",
            rows=rows,
            paging=paging,
            page_link=lambda page: links.workloads(
                request.query(page="" if page == 1 else str(page))
            ),
            fields=[
                (name, label, typed.get(name, ""), hint)
                for name, label, hint in lists.WORKLOAD_FIELDS
            ],
            nothing="No matching workload." if typed else "No workload has been measured yet.",
            data=links.data("workloads", request.query()),
        )

    def run(self, links: Links, entry: RunEntry, *, before: RunEntry | None) -> str:
        """The report of one run with a link to the previous run, or why it cannot be read."""
        actions = []
        if before:
            compare = links.compare(before.id, entry.id)
            actions.append(("Compare with the previous run", compare))
        if data := links.data("run", [("id", entry.id)]):
            actions.append(("JSON", data))
        template = self._engine.get_template("dashboard_navigation.html.j2")
        navigation = template.render(links=links, here="runs", actions=actions)
        runtime = links.asset(runtime_name()) if runtime_name() else ""
        folder = Path(entry.folder)
        cleaner = self._cleaner
        try:
            return _run_page(
                folder, run_mark(folder), entry.state, navigation, runtime, cleaner=cleaner
            )
        except ResultsDamaged as error:
            return self.message(
                links,
                "Unreadable run",
                error,
                facts=[
                    ("run", entry.id),
                    ("study", entry.study),
                    ("started", entry.started),
                    ("machine", entry.machine_text),
                    *(("note", note) for note in entry.notes),
                ],
            )

    def history(self, links: Links, series: Series) -> str:
        """One workload over time."""
        history = lists.read_history(self._live_store, series)
        return self._render(
            "dashboard_history.html.j2",
            links,
            here="workloads",
            title=one_line(series.workload),
            about=f"{one_line(series.candidate)} vs {one_line(series.baseline)}",
            history=history,
            metrics=[
                (
                    METRIC_NAMES[metric].capitalize(),
                    links.history(replace(series, metric=metric)),
                    metric,
                )
                for metric in history.metrics
            ],
            metric_name=METRIC_NAMES[series.metric].capitalize(),
            rows=lists.history_rows(history),
            chart=lists.history_chart(history, clean=self._cleaner.clean if self._cleaner else str),
            charts_script=script_name("charts"),
            runtime=runtime_link(links.asset(runtime_name())) if runtime_name() else "",
            method=METHOD,
            changes=lists.change_rows(history),
            data=links.data("history", series_query(series)),
        )

    def compare(
        self,
        links: Links,
        request: CompareRequest | None = None,
        sides: tuple[lists.Chosen, lists.Chosen] | None = None,
        *,
        pairs: Sequence[tuple[RunEntry, RunEntry]] | None = None,
    ) -> str:
        """The comparison of two runs; without sides, the form to choose them, or the list of pairs."""
        newest = self._live_store.runs(RunFilter(limit=_RUNS_TO_CHOOSE)) if links.is_served else []
        runs = [run for run in newest if not run.damage]
        ids = {run.id for run in runs}
        runs += [side.run for side in sides or () if side.run.id not in ids]
        compared = lists.compare_chosen(*sides) if sides else None
        comparison = compared.comparison if compared else None
        return self._render(
            "dashboard_compare.html.j2",
            links,
            here="compare",
            title="Compare two runs",
            about="Differences between two runs, as far as their data supports a verdict",
            sortable=True,
            runs=runs,
            pairs=pairs,
            request=request,
            sides=[side.run for side in sides] if sides else None,
            compared=compared,
            data=links.data("compare", request.query) if request and sides else "",
            **(compare_values(comparison) if comparison else {}),
        )

    def live(self, links: Links) -> str:
        """The running runs."""
        running = self._live_store.running()
        noun = "benchmark is" if len(running) == 1 else "benchmarks are"
        return self._render(
            "dashboard_live.html.j2",
            links,
            here="live",
            title="Live",
            about=f"{len(running)} {noun} running" if running else "Nothing is running",
            runs=running,
            home=str(self._live_store.home),
            data=links.data("live"),
        )

    def message(
        self,
        links: Links,
        title: str,
        error: TorchyardError,
        *,
        facts: Sequence[tuple[str, str]] = (),
    ) -> str:
        """An error page."""
        available = [fact for fact in facts if fact[1]]
        return self._render(
            "dashboard_message.html.j2", links, here="", title=title, error=error, facts=available
        )

    def _render(self, template: str, links: Links, **values: Any) -> str:
        return self._engine.get_template(template).render(
            links=links,
            policy=self._policy,
            style=style_name(),
            script=script_name("dashboard"),
            theme=script_name("theme"),
            **{"data": "", "actions": (), **values},
        )


def _engine(cleaner: Redactor | None) -> Environment:
    engine = template_engine()
    if cleaner is not None:

        def finalize(value: object) -> object:
            # Links and rendered templates are subclasses of str and stay unchanged.
            return cleaner.clean(without_controls(value)) if type(value) is str else value

        engine.finalize = finalize
    engine.globals["version"] = __version__
    engine.globals["marks"] = {verdict.value: mark for verdict, mark in MARKS.items()}
    engine.globals["navigation_items"] = _navigation_items
    return engine


def _navigation_items(links: Links) -> list[tuple[str, str, str]]:
    items = [
        ("runs", "Runs", links.runs()),
        ("workloads", "Workloads", links.workloads()),
        ("compare", "Compare", links.compare()),
        ("live", "Live", links.live()),
    ]
    return [item for item in items if item[2]]


@lru_cache(maxsize=_KEPT_RUN_PAGES)
def _run_page(
    folder: Path,
    mark: object,  # noqa: ARG001 - part of the cache key, like the state
    state: str,  # noqa: ARG001
    navigation: str,
    runtime: str,
    *,
    cleaner: Redactor | None,
) -> str:
    """Render the report of a run; cached, because reading a large run takes seconds."""
    from markupsafe import Markup

    frame = Frame(
        navigation=Markup(navigation),  # noqa: S704 - rendered and escaped by a template
        style=asset("dashboard_navigation.css"),
        runtime=runtime,
    )
    run = read_run(folder)
    return to_html(run if cleaner is None else redacted_run(run, cleaner=cleaner), frame=frame)


def run_mark(folder: Path) -> tuple[tuple[int, int], ...]:
    """Return a mark that changes when the files of a run change."""
    marks = []
    for name in (RUN_FILE, *RECORD_FILES):
        try:
            facts = (folder / name).stat()
        except OSError:
            marks.append((0, -1))
        else:
            marks.append((facts.st_mtime_ns, facts.st_size))
    return tuple(marks)


def _count(paging: lists.Paging, noun: str) -> str:
    plural = noun if paging.total == 1 or noun.endswith("s") else f"{noun}s"
    return f"{paging.text} {plural}"
