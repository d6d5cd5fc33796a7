"""`torchyard history`: show which workloads changed over time, and where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

import click

from torchyard.cli.options import SectionedCommand, chosen_format, deliver, report_options, section
from torchyard.cli.output import common_options, printable

if TYPE_CHECKING:
    from torchyard.results.model import Metric, SeriesHistory


# Repeated here because `--help` must not load `results.model` and the reports; a test compares them.
METRICS: Final = ("speedup", "time", "compile", "memory")
FORMATS: Final = ("terminal", "markdown", "json", "csv", "html")
_ENDINGS: Final = {".json": "json", ".csv": "csv", ".html": "html", ".md": "markdown"}

_HELP = """
\b
Examples:
  torchyard history
      all changed workloads, largest change first, with revisions
  torchyard history --since 7d --changes-only
      only changes of the last week; the exit code is always 0
  torchyard history kernels/matmul --metric time
      one workload: a plot of its runs, with steps and drifts
  torchyard history --machine 'epyc*' --format html --output history.html

Detect changes, steps or slow drifts, in the histories of workloads: one candidate and baseline on one
machine. The cause is after the first revision of the range, up to and including the second.
Untrusted results are shown but not analyzed.
"""

_which = section("Filters (texts may contain * and ?)")
_how = section("Output")


@click.command(cls=SectionedCommand, help=_HELP)
@click.argument("workload", default="", metavar="[WORKLOAD]")
@_which(
    "--metric",
    type=click.Choice(METRICS),
    default="speedup",
    show_default=True,
    help="`speedup` is paired with the baseline; the others are of the candidate alone.",
)
@_which("--candidate", default="", metavar="TEXT", help="Name of the candidate variant.")
@_which("--baseline", default="", metavar="TEXT", help="Name of the baseline variant.")
@_which("--machine", default="", metavar="TEXT", help="Machine name.")
@_which("--since", metavar="WHEN", help="Changes since: 2025-01-31, or 12h, 7d, 2w ago.")
@_which("--until", metavar="WHEN", help="Changes before that time.")
@_which("--least", metavar="PERCENT", help="Smallest reported change. [default: 0.5%]")
@_which(
    "--alpha",
    metavar="PERCENT",
    help="False alarm rate per history without changes; use less if checked after every run. [default: 1%]",
)
@_which(
    "--with-untrusted",
    "--with-busy",
    "with_untrusted",
    is_flag=True,
    help="Also analyze untrusted results (`torchyard explain untrusted`).",
)
@_how("--changes-only", is_flag=True, help="Omit histories without a change.")
@report_options(FORMATS, usual="terminal", option=_how)
@common_options
def history(
    workload: str,
    metric: str,
    candidate: str,
    baseline: str,
    machine: str,
    since: str | None,
    until: str | None,
    least: str | None,
    alpha: str | None,
    with_untrusted: bool,
    changes_only: bool,
    format_name: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Show changes over time."""
    from torchyard.core.units import parse_fraction
    from torchyard.results.commands.options import counted, fresh_store, moment_of
    from torchyard.results.history.changes import ChangeCache, histories, ranked
    from torchyard.results.model import Metric, RunFilter

    name = chosen_format(format_name, output, _ENDINGS, usual="terminal", as_json=as_json)
    chosen = next(one for one in get_args(Metric) if one == metric)
    rules = None
    if least is not None or alpha is not None:
        from torchyard.stats.change_points.detection import Rules

        rules = Rules()
        if least is not None:
            rules = replace(rules, least=parse_fraction(least))
        if alpha is not None:
            rules = replace(rules, alpha=parse_fraction(alpha))
    filters = RunFilter(
        workload=workload,
        candidate=candidate,
        baseline=baseline,
        machine=machine,
        since=moment_of(since, option="--since") if since else "",
        until=moment_of(until, option="--until") if until else "",
    )
    with fresh_store() as store:
        place = store.place.with_suffix(".changes.json") if store.place is not None else None
        series = histories(
            store,
            filters,
            chosen,
            rules=rules,
            with_untrusted=with_untrusted,
            cache=ChangeCache(place),
            progress=counted("detecting changes"),
        )
    changed = ranked(series)
    unchanged = [] if changes_only else [one for one in series if not one.changes]
    text = _render([*changed, *unchanged], chosen, name, one=bool(workload), to_file=bool(output))
    deliver(text if name == "html" or output else printable(text), name, output)


def _render(
    series: list[SeriesHistory], metric: Metric, name: str, *, one: bool, to_file: bool
) -> str:
    import shutil
    import sys

    from torchyard.results.history.report import (
        changes_markdown,
        changes_text,
        history_csv,
        history_json,
        series_markdown,
        series_text,
    )

    width = 100 if to_file else min(max(shutil.get_terminal_size((100, 24)).columns, 40), 160)
    if name == "json":
        return history_json(series, points=one)
    if name == "csv":
        return history_csv(series)
    if name == "markdown":
        return series_markdown(series) if one else changes_markdown(series, metric)
    if name == "html":
        from torchyard.results.history.report import history_page

        return history_page(series, metric)
    if not one:
        return changes_text(series, metric, width=width)
    plain = not to_file and "utf" not in (sys.stdout.encoding or "").lower()
    return series_text(series, width=width, ascii_only=plain)
