"""`torchyard results delete`: remove runs."""

from __future__ import annotations

import sys

import click

from torchyard.cli.output import common_options, print_data, print_json, printable, talk

__all__ = ["delete"]

_HELP = """
\b
Examples:
  torchyard results delete 20250131T120000
  torchyard results delete 20250131T120000 20250201T080000 --yes

Remove runs with everything in them, for good. Each RUN is the id of a run, the beginning of one, or
a run's folder. A run that is going on, or that a saved baseline names, is refused, and then none
is removed.
"""


@click.command(help=_HELP)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
def delete(runs: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Remove runs."""
    from pathlib import Path

    from torchyard.cli.results_store import fresh_store
    from torchyard.cli.results_text import run_table
    from torchyard.errors import UsageError
    from torchyard.results.run_changes import check_may_delete, delete_run

    with fresh_store() as store:
        entries = list({entry.folder: entry for entry in map(store.run, runs)}.values())
        for entry in entries:
            check_may_delete(Path(entry.folder))
        if not yes:
            if not sys.stdin.isatty():
                raise UsageError(
                    "nobody is there to be asked", hint="give --yes to remove without a question"
                )
            talk(run_table(entries))
            noun = "this run" if len(entries) == 1 else f"these {len(entries)} runs"
            click.confirm(f"Remove {noun} for good?", abort=True, err=True)
        for entry in entries:
            delete_run(Path(entry.folder))
        store.refresh()
    if as_json:
        print_json({"deleted": [entry.id for entry in entries]})
    else:
        print_data(printable("\n".join(f"removed {entry.id}" for entry in entries)))
