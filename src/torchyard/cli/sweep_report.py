"""`torchyard sweep report`: what a sweep says as a whole, in any format, also while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from torchyard.cli.output import common_options
from torchyard.cli.report_options import chosen_format, deliver, report_options

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
  torchyard sweep report ./part-1 ./part-2 ./part-3

Show every suite with its pass rate and geometric mean, the best and the worst, and what did not pass
and why; for an A/A sweep, how often this machine gave a false alarm. SWEEP is a sweep's folder, its
name or the beginning of it, or `latest`. Several of them, such as shards from other machines, are
read as one: corrected together, and a cell that two of them hold is taken from the last that finished
it. `torchyard report` shows one run in full.
"""


@click.command(help=_HELP)
@click.argument("sweeps", nargs=-1, metavar="[SWEEP]...")
@report_options(FORMATS, usual="text", left_out="host names, users, paths and values of variables")
@common_options
def report(
    sweeps: tuple[str, ...],
    format_name: str | None,
    output: Path | None,
    share: bool,
    as_json: bool,
) -> None:
    """Summarize a sweep."""
    from dataclasses import replace

    from torchyard.cli.sweep_choice import find_sweep
    from torchyard.reports.sweep_formats import render_sweep, reports_beside
    from torchyard.reports.sweep_sharing import shared_summary
    from torchyard.workflow.sweep_parts import read_sweeps
    from torchyard.workflow.sweep_summary import sweep_summary

    name = chosen_format(format_name, output, _ENDINGS, usual="text", as_json=as_json)
    found = read_sweeps([find_sweep(one) for one in sweeps or ("latest",)])
    summary = sweep_summary(found.plan, found.statuses, found.runs, folders=found.folders)
    summary = replace(summary, doubts=(*found.doubts, *summary.doubts))
    if share:
        summary = shared_summary(summary, found.runs)
    links = reports_beside(summary, output.absolute().parent) if output is not None else None
    deliver(render_sweep(summary, name, links=links), name, output)
