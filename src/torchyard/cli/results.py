"""`torchyard results`: the group of commands about kept runs."""

from __future__ import annotations

from typing import Final

import click

from torchyard.cli.lazy_group import CommandTable, LazyGroup

__all__ = ["RESULTS_COMMANDS", "results"]

RESULTS_COMMANDS: Final[CommandTable] = {
    "list": ("torchyard.cli.results_list:list_results", "list runs or comparisons, by any filter"),
    "show": ("torchyard.cli.results_show:show", "show what is known of a run"),
    "note": ("torchyard.cli.results_note:note", "keep a note with a run"),
    "delete": ("torchyard.cli.results_delete:delete", "remove runs"),
    "export": (
        "torchyard.cli.results_export:export",
        "write comparisons as CSV, JSON lines or Parquet, or whole runs as an archive",
    ),
    "import": (
        "torchyard.cli.results_import:import_results",
        "bring in runs of an archive or a folder",
    ),
    "verify": ("torchyard.cli.results_verify:verify", "read everything and list what is damaged"),
    "reindex": ("torchyard.cli.results_reindex:reindex", "make the index of runs anew"),
}
"""Name -> (where the click command is, one line about it)."""

_HELP = """
\b
Examples:
  torchyard results list --workload models/gpt --verdict slower --since 7d
  torchyard results show latest
  torchyard results note latest "after the update of the kernel"
  torchyard results export --study nightly --output nightly.parquet

Find, keep and hand on the results of runs. Runs are folders in the runs' home, and everything here
works without asking another machine.
"""


@click.group(cls=LazyGroup, table=RESULTS_COMMANDS, help=_HELP, no_args_is_help=True)
def results() -> None:
    """Commands about kept runs."""
