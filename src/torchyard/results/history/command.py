"""`torchyard history`: show which workloads changed over time, and where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

import click

from torchyard.cli.options import SectionedCommand, section
from torchyard.cli.output import common_options, print_data, printable, talk, write_file

if TYPE_CHECKING:
    from torchyard.results.model import Metric, SeriesHistory

__all__ = ["history"]

# Written out because `core` and the reports must not be loaded for `--help`; a test holds them
# together.
METRICS: Final = ("speedup", "time", "compile", "memory")
FORMATS: Final = ("terminal", "markdown", "json", "csv", "html")
_ENDINGS: Final = {".json": "json", ".csv": "csv", ".html": "html", ".md": "markdown"}

_HELP = """
\b
Examples:
  torchyard history
      which workloads changed, the largest change first, with revisions
  torchyard history --since 7d --changes-only
      only this week's changes; exit code 0 either way
  torchyard history kernels/matmul --metric time
      one workload: its runs as a picture, steps and drifts
  torchyard history --machine 'epyc*' --format html --output history.html

Look for changes in the histories of workloads. A history is one workload with one candidate and
baseline on one machine. Steps and slow drifts are told apart; single bad runs and machines with two
speeds are no changes. The cause of a change lies after the first revision of its range, up to and
with the second. Untrusted results are shown and not judged.
"""

_which = section("Which histories (texts may hold * and ?)")
_how = section("How to show them")


@click.command(cls=SectionedCommand, help=_HELP)
@click.argument("workload", default="", metavar="[WORKLOAD]")
@_which(
    "--metric",
    type=click.Choice(METRICS),
    default="speedup",
    show_default=True,
    help="speedup is paired with the baseline and holds on noisy machines; the others are the "
    "candidate's own.",
)
@_which("--candidate", default="", metavar="TEXT", help="Name of the variant judged.")
@_which("--baseline", default="", metavar="TEXT", help="Name of the variant compared with.")
@_which("--machine", default="", metavar="TEXT", help="Short name of the hardware.")
@_which("--since", metavar="WHEN", help="Changes from then on: 2025-01-31, or 12h, 7d, 2w ago.")
@_which("--until", metavar="WHEN", help="Changes before then.")
@_which(
    "--least",
    metavar="PERCENT",
    help="Smallest change that counts; 0.5% when left out.",
)
@_which(
    "--alpha",
    metavar="PERCENT",
    help="Chance that a quiet history shows a change; 1% when left out. Less for one that is "
    "looked at after every run.",
)
@_which(
    "--with-untrusted",
    "--with-busy",
    "with_untrusted",
    is_flag=True,
    help="Judge untrusted results, too (`torchyard explain untrusted`).",
)
@_how("--changes-only", is_flag=True, help="Leave out histories, and pictures, without a change.")
@_how(
    "--format",
    "format_name",
    type=click.Choice(FORMATS),
    help="terminal when left out, or what the ending of --output says.",
)
@_how(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to a file instead of stdout.",
)
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
    """Find changes and show them."""
    from torchyard.core.units import parse_fraction
    from torchyard.errors import UsageError
    from torchyard.results.commands.options import counted, fresh_store, moment_of
    from torchyard.results.history.changes import HistoryMemory, histories, ranked
    from torchyard.results.model import Metric, Wanted

    if as_json and format_name not in (None, "json"):
        raise UsageError(f"--json and --format {format_name} exclude each other", hint="keep one")
    ending = _ENDINGS.get(output.suffix, "terminal") if output is not None else "terminal"
    name = "json" if as_json else format_name or ending
    measured = next(one for one in get_args(Metric) if one == metric)
    rules = None
    if least is not None or alpha is not None:
        from torchyard.stats.change_points.detection import Rules

        rules = Rules()
        if least is not None:
            rules = replace(rules, least=parse_fraction(least))
        if alpha is not None:
            rules = replace(rules, alpha=parse_fraction(alpha))
    wanted = Wanted(
        workload=workload,
        candidate=candidate,
        baseline=baseline,
        machine=machine,
        since=moment_of(since, option="--since") if since else "",
        until=moment_of(until, option="--until") if until else "",
    )
    with fresh_store() as store:
        place = store.place.with_suffix(".changes.json") if store.place is not None else None
        found = histories(
            store,
            wanted,
            measured,
            rules=rules,
            with_untrusted=with_untrusted,
            memory=HistoryMemory(place),
            progress=counted("looking for changes"),
        )
    changed = ranked(found)
    quiet = [] if changes_only else [one for one in found if not one.changes]
    text = _render([*changed, *quiet], measured, name, one=bool(workload), to_file=bool(output))
    if output is None:
        print_data(text if name == "html" else printable(text))
    else:
        write_file(output, text, option="--output")
        talk(f"{name}: {output}")


def _render(
    found: list[SeriesHistory], metric: Metric, name: str, *, one: bool, to_file: bool
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
        return history_json(found, points=one)
    if name == "csv":
        return history_csv(found)
    if name == "markdown":
        return series_markdown(found) if one else changes_markdown(found, metric)
    if name == "html":
        from torchyard.results.history.report import history_page

        return history_page(found, metric)
    if not one:
        return changes_text(found, metric, width=width)
    plain = not to_file and "utf" not in (sys.stdout.encoding or "").lower()
    return series_text(found, width=width, ascii_only=plain)
