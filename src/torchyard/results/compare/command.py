"""`torchyard compare`: compare any two runs, variants or baselines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from torchyard.cli.options import chosen_format, deliver, report_options
from torchyard.cli.output import check_writable, common_options, data_console
from torchyard.errors import UsageError
from torchyard.results.commands.options import find_run, percent, session_option

if TYPE_CHECKING:
    from torchyard.results.compare.model import CrossComparison


# Repeated here because `--help` must not load the reports; a test compares the two.
FORMATS: Final = ("terminal", "json", "csv", "html", "markdown")
_ENDINGS: Final = {".json": "json", ".csv": "csv", ".html": "html", ".md": "markdown"}

_HELP = """
\b
Examples:
  torchyard compare 20250101T090000.000Z-1a2b latest
      two runs: their candidates, by their speedups over the same baseline
  torchyard compare baseline:main latest --format html --output compare.html
  torchyard compare latest#inductor '#max-autotune'
      two variants of one run, paired from its blocks
  torchyard compare --over-time models/gpt
      one workload in all runs

Compare A with B, by default the latest run. Each is a run (an id, a unique prefix of one, a folder, or
`latest`), baseline:NAME, a baseline file, or RUN#VARIANT; `#VARIANT` alone refers to the run of A. If
the data does not support a verdict, the ratio is shown with the reason.
"""


@click.command(help=_HELP)
@click.argument("one", required=False, metavar="[A]")
@click.argument("other", required=False, metavar="[B]")
@click.option(
    "--over-time",
    metavar="WORKLOAD",
    help="List all runs of one workload, oldest first; may contain * and ?.",
)
@click.option(
    "--margin",
    metavar="PERCENT",
    help="Smaller differences count as the same. [default: the margin of B's run]",
)
@session_option
@report_options(FORMATS, usual="terminal")
@common_options
def compare(
    one: str | None,
    other: str | None,
    over_time: str | None,
    margin: str | None,
    session_spread: str | None,
    format_name: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compare two sides."""
    name = chosen_format(format_name, output, _ENDINGS, usual="terminal", as_json=as_json)
    if output is not None:
        check_writable(output, option="--output")
    if over_time is not None:
        if one is not None:
            raise UsageError("--over-time uses all runs", hint="remove A and B")
        from torchyard.results.compare.over_time import history_of

        text = history_of(over_time, name)
    else:
        if one is None:
            raise UsageError("nothing to compare", hint="give two runs, or a run and a baseline")
        comparison = _compared(one, other or "latest", margin, session_spread)
        if name == "terminal" and output is None:
            from torchyard.results.compare.report import print_comparison

            print_comparison(comparison, data_console(markup=False))
            return
        from torchyard.results.compare.report import COMPARE_FORMATS

        text = COMPARE_FORMATS[name](comparison)
    deliver(text, name, output)


def _compared(
    one: str, other: str, margin: str | None, session_spread: str | None
) -> CrossComparison:
    from torchyard.results.compare.compare_sides import compare_sides
    from torchyard.results.compare.sides import Rules, choose_side
    from torchyard.stats.between_runs import SESSION_SD

    first = choose_side(one, find=find_run)
    second = choose_side(other, find=find_run, beside=first)
    budget = second.newest.study.budget
    rules = Rules(
        confidence=1.0 - budget.alpha,
        margin=percent(margin, "--margin", budget.margin),
        session_sd=percent(session_spread, "--session-spread", SESSION_SD),
    )
    return compare_sides(first, second, rules)
