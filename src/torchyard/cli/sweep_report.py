"""`torchyard sweep report`: what a sweep says as a whole, in any format, also while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from torchyard.cli.output import common_options
from torchyard.cli.report_options import chosen_format, deliver, report_options
from torchyard.errors import TorchyardError

if TYPE_CHECKING:
    from torchyard.core.sweep import CellStatus
    from torchyard.results.run_reader import Run
    from torchyard.results.sweep_folder import SweepFolder

__all__ = ["report"]

# Written out because the reports must not be loaded for `--help`; a test holds the two together.
FORMATS: Final = ("text", "markdown", "json", "html")
_ENDINGS: Final = {".json": "json", ".html": "html", ".md": "markdown"}

_HELP = """
\b
Examples:
  torchyard sweep report
  torchyard sweep report latest --output sweep.html
  torchyard sweep report ./sweep --format json | jq '.groups[].common'
  torchyard sweep report --share --format markdown

Show every suite with its pass rate and geometric mean, the best and the worst, and what did not pass
and why; for an A/A sweep, how often this machine gave a false alarm. SWEEP is a sweep's folder, its
name or the beginning of it, or `latest`. `torchyard report` shows one of its runs in full.
"""


@click.command(help=_HELP)
@click.argument("sweep", default="latest", metavar="[SWEEP]")
@report_options(FORMATS, usual="text", left_out="host names, users, paths and values of variables")
@common_options
def report(
    sweep: str, format_name: str | None, output: Path | None, share: bool, as_json: bool
) -> None:
    """Summarize a sweep."""
    from torchyard.cli.sweep_choice import find_sweep
    from torchyard.reports.sweep_formats import render_sweep, reports_beside
    from torchyard.reports.sweep_sharing import shared_summary
    from torchyard.results.sweep_folder import SweepFolder
    from torchyard.workflow.sweep_summary import sweep_summary

    name = chosen_format(format_name, output, _ENDINGS, usual="text", as_json=as_json)
    folder = SweepFolder.open(find_sweep(sweep))
    statuses = folder.statuses()
    runs = _runs(folder, statuses)
    summary = sweep_summary(folder.plan, statuses, runs, folder=folder.folder)
    if share:
        summary = shared_summary(summary, runs)
    links = reports_beside(summary, output.absolute().parent) if output is not None else None
    deliver(render_sweep(summary, name, links=links), name, output)


def _runs(folder: SweepFolder, statuses: list[CellStatus]) -> list[Run]:
    """The joined runs, or while the sweep goes on those of the cells that have one."""
    from torchyard.results.run_reader import read_run

    joined = [Path(path) for path in folder.runs().values()]
    places = [folder.folder / status.run for status in statuses if status.state == "done"]
    for chosen in (joined, places):
        try:
            found = [read_run(place) for place in chosen]
        except TorchyardError:
            continue  # a joined run was removed: the cells still have everything
        if found:
            return found
    return []
