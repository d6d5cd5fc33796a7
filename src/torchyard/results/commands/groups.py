"""The command groups `torchyard results` and `torchyard baseline`, loaded lazily."""

from __future__ import annotations

from typing import Final

import click

from torchyard.cli.group import CommandTable, LazyGroup

RESULTS_COMMANDS: Final[CommandTable] = {
    "list": (
        "torchyard.results.commands.runs:list_results",
        "list runs or comparisons, with filters",
    ),
    "show": ("torchyard.results.commands.runs:show", "show facts, verdicts and notes of a run"),
    "note": ("torchyard.results.commands.runs:note", "add a note to a run"),
    "delete": ("torchyard.results.commands.runs:delete", "delete runs"),
    "export": (
        "torchyard.results.commands.transfer:export",
        "write comparisons as CSV, JSON lines or Parquet, or whole runs as an archive",
    ),
    "import": (
        "torchyard.results.commands.transfer:import_results",
        "import runs from an archive or a folder",
    ),
    "verify": (
        "torchyard.results.commands.runs:verify",
        "check all files of runs and list damage",
    ),
    "reindex": ("torchyard.results.commands.runs:reindex", "rebuild the index of runs"),
}
"""Name -> (location of the click command, one-line description)."""

_RESULTS_HELP = """
\b
Examples:
  torchyard results list --workload models/gpt --verdict slower --since 7d
  torchyard results show latest
  torchyard results note latest "after the update of the kernel"
  torchyard results export --study nightly --output nightly.parquet

Find, annotate, export and import the results of runs. Runs are folders in the results directory; no
network is used.
"""


@click.group(cls=LazyGroup, table=RESULTS_COMMANDS, help=_RESULTS_HELP, no_args_is_help=True)
def results() -> None:
    """Commands on stored runs."""


BASELINE_COMMANDS: Final[CommandTable] = {
    "save": (
        "torchyard.results.commands.baseline:save",
        "save runs as a baseline, or write them to a file",
    ),
    "list": ("torchyard.results.commands.baseline:list_all", "list baselines"),
    "show": ("torchyard.results.commands.baseline:show", "show the runs of a baseline"),
    "delete": (
        "torchyard.results.commands.baseline:delete",
        "delete a baseline; its runs are kept",
    ),
}
"""Name -> (location of the click command, one-line description)."""

_BASELINE_HELP = """
\b
Examples:
  torchyard baseline save main
  torchyard baseline save main 20250101T09 20250102T09 --note "two nights" --replace
  torchyard baseline save main --file base.json
  torchyard compare baseline:main latest
  torchyard gate latest --baseline main --max-slowdown 2%

A baseline is a name for one or more runs. With several runs of the same code, comparisons also
account for the variation between sessions.
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
    """Commands on baselines."""
