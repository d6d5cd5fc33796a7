"""`torchyard build explain`: why a build failed, from its log."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from torchyard.cli.number_types import Count
from torchyard.cli.output import common_options, print_data, print_json, printable

__all__ = ["explain"]

_HELP = """
\b
Examples:
  torchyard build explain build.log
  pip install . 2>&1 | torchyard build explain -
  torchyard build explain build.log --json

Read the log of a failed build, whoever ran it, and say the cause and the remedy; for an unknown
failure, the first real error and the command that failed. A log that ends in success gives "No
failure found" and exit code 0, too; --json has `failed`.
"""


@click.command("explain", help=_HELP)
@click.argument("log", metavar="LOG|-")
@click.option(
    "--exit-code", type=Count(-64, 255), default=None, help="Exit code of the build, if known."
)
@common_options
def explain(log: str, exit_code: int | None, as_json: bool) -> None:
    """Diagnose a log."""
    from torchyard.build.diagnosis import describe, diagnose
    from torchyard.core.records import encode

    diagnosis = diagnose(sys.stdin.buffer if log == "-" else Path(log), exit_code=exit_code)
    if as_json:
        print_json({"diagnosis": encode(diagnosis)})
    else:
        print_data(printable(describe(diagnosis)))
