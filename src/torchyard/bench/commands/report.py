"""`torchyard report`: show a run in any format."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from torchyard.cli.options import Number, chosen_format, deliver, report_options
from torchyard.cli.output import common_options, data_console, print_line

if TYPE_CHECKING:
    from torchyard.results.run_reader import Run


# Repeated here to keep `--help` fast, which does not import the reports; a test compares both.
FORMATS: Final = (
    "terminal",
    "json",
    "csv",
    "dynamo-csv",
    "html",
    "markdown",
    "roofline",
    "roofline-svg",
)

_ENDINGS: Final = {
    ".json": "json",
    ".csv": "csv",
    ".html": "html",
    ".md": "markdown",
    ".svg": "roofline-svg",
}

_HELP = """
\b
Examples:
  torchyard report
  torchyard report latest --format html --output report.html
  torchyard report build/run --format json | jq .
  torchyard report --share --output for-everybody.html
  torchyard report --format dynamo-csv --output inductor_performance.csv
  torchyard report --format roofline
  torchyard report --output roofline.svg

Show a run in any format. The table has the width of the terminal, or of COLUMNS; 120 in a file. RUN is a run folder, the id of a run in the results directory or a unique
prefix of one, or `latest`.
`dynamo-csv` has the columns of PyTorch's benchmarks/dynamo. `roofline` compares kernels with the
machine's peak; `roofline-svg` is the same as a chart.
"""


@click.command(help=_HELP)
@click.argument("run", default="latest", metavar="[RUN]")
@report_options(
    FORMATS,
    usual="terminal",
    left_out="host names, users, paths, values of variables and the command line",
)
@click.option(
    "--price",
    type=Number(0.0, 1e9),
    metavar="AMOUNT",
    help="Price of the machine per hour, for the cost of a million generated tokens.",
)
@common_options
def report(
    run: str,
    format_name: str | None,
    output: Path | None,
    share: bool,
    price: float | None,
    as_json: bool,
) -> None:
    """Read a run and write it in the chosen format."""
    from torchyard.results.commands.options import find_run

    name = chosen_format(format_name, output, _ENDINGS, usual="terminal", as_json=as_json)
    if name == "terminal" and output is None and (sys.stdout.isatty() or "COLUMNS" in os.environ):
        _print_text(find_run(run), share=share, price=price)
        return
    deliver(render(find_run(run), name, share=share, price=price), name, output)


def _print_text(folder: Path, *, share: bool, price: float | None) -> None:
    """Print the run with the width and the colors of the terminal."""
    from torchyard.bench.report.text import print_run

    run, console = _read(folder, share=share, price=price), data_console(markup=False)
    print_run(run, console, lambda line: print_line(console, line))


def render(
    folder: Path, format_name: str, *, share: bool = False, price: float | None = None
) -> str:
    """Return the run in a folder as text in the given format."""
    from torchyard.bench.report.formats import FORMATS as WRITERS

    return WRITERS[format_name](_read(folder, share=share, price=price))


def _read(folder: Path, *, share: bool, price: float | None) -> Run:
    """Read the run; `price` is what an hour of the machine costs."""
    from torchyard.bench.report.sharing import redacted_run
    from torchyard.results.run_reader import read_run

    run = read_run(folder)
    run = redacted_run(run) if share else run
    return replace(run, info={**run.info, "price_per_hour": price})
