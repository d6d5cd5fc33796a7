"""The command groups `torchyard results` and `torchyard baseline`, loaded lazily."""

from __future__ import annotations

from typing import Final

import click

from torchyard.cli.group import CommandTable, LazyGroup

RESULTS_COMMANDS: Final[CommandTable] = {
    "list": (
        "torchyard.results.commands.runs:list_results",
        "list runs or comparisons, by any filter",
    ),
    "show": ("torchyard.results.commands.runs:show", "show what is known of a run"),
    "note": ("torchyard.results.commands.runs:note", "keep a note with a run"),
    "delete": ("torchyard.results.commands.runs:delete", "remove runs"),
    "export": (
        "torchyard.results.commands.transfer:export",
        "write comparisons as CSV, JSON lines or Parquet, or whole runs as an archive",
    ),
    "import": (
        "torchyard.results.commands.transfer:import_results",
        "bring in runs of an archive or a folder",
    ),
    "verify": (
        "torchyard.results.commands.runs:verify",
        "read everything and list what is damaged",
    ),
    "reindex": ("torchyard.results.commands.runs:reindex", "make the index of runs anew"),
}
"""Name -> (where the click command is, one line about it)."""

_RESULTS_HELP = """
\b
Examples:
  torchyard results list --workload models/gpt --verdict slower --since 7d
  torchyard results show latest
  torchyard results note latest "after the update of the kernel"
  torchyard results export --study nightly --output nightly.parquet

Find, keep and hand on the results of runs. Runs are folders in the runs' home, and everything here
works without asking another machine.
"""


@click.group(cls=LazyGroup, table=RESULTS_COMMANDS, help=_RESULTS_HELP, no_args_is_help=True)
def results() -> None:
    """Commands about kept runs."""


BASELINE_COMMANDS: Final[CommandTable] = {
    "save": (
        "torchyard.results.commands.baseline:save",
        "give runs a name, or write them to a file",
    ),
    "list": ("torchyard.results.commands.baseline:list_all", "list the baselines"),
    "show": ("torchyard.results.commands.baseline:show", "show what a baseline names"),
    "delete": ("torchyard.results.commands.baseline:delete", "forget a name; its runs stay"),
}
"""Name -> (where the click command is, one line about it)."""

_BASELINE_HELP = """
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
    help=_BASELINE_HELP,
    no_args_is_help=True,
    subcommand_metavar="COMMAND [OPTIONS]",
)
def baseline() -> None:
    """Names for runs."""
