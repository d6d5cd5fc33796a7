"""`torchyard baseline`: names for runs that later ones are compared with."""

from __future__ import annotations

from typing import Final

import click

from torchyard.cli.lazy_group import CommandTable, LazyGroup

__all__ = ["BASELINE_COMMANDS", "baseline"]

BASELINE_COMMANDS: Final[CommandTable] = {
    "save": ("torchyard.cli.baseline_save:save", "give runs a name, or write them to a file"),
    "list": ("torchyard.cli.baseline_list:list_all", "list the baselines"),
    "show": ("torchyard.cli.baseline_list:show", "show what a baseline names"),
    "delete": ("torchyard.cli.baseline_list:delete", "forget a name; its runs stay"),
}
"""Name -> (where the click command is, one line about it)."""

_HELP = """
\b
Examples:
  torchyard baseline save main
  torchyard baseline save main 20250101T09 20250102T09 --note "two nights" --replace
  torchyard baseline save main --file base.json
  torchyard compare baseline:main latest
  torchyard gate latest --baseline main --max-slowdown 2%

A baseline is a name for one or more runs. Several runs of the same thing show what sessions differ
by, and make comparisons with it more honest.
"""


@click.group(
    cls=LazyGroup,
    table=BASELINE_COMMANDS,
    name="baseline",
    help=_HELP,
    no_args_is_help=True,
    subcommand_metavar="COMMAND [OPTIONS]",
)
def baseline() -> None:
    """Names for runs."""
