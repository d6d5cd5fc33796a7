"""`torchyard sweep list`: the sweeps in the sweeps' home, and how far they are."""

from __future__ import annotations

from typing import Any

import click

from torchyard.cli.output import common_options, print_data, print_json, printable, talk
from torchyard.errors import TorchyardError

__all__ = ["list_sweeps"]

_HELP = """
\b
Examples:
  torchyard sweep list
  torchyard sweep list --json

List sweeps, newest first: when, what, and how many of its cells are done, running or failed.
"""


@click.command("list", help=_HELP)
@common_options
def list_sweeps(as_json: bool) -> None:
    """List what is kept."""
    from torchyard.cli.sweep_choice import sweep_folders
    from torchyard.cli.sweep_text import sweep_row, sweep_table
    from torchyard.results.sweep_folder import SweepFolder, sweeps_home

    rows: list[tuple[str, ...]] = []
    found: list[dict[str, Any]] = []
    for path in sweep_folders():
        try:
            folder = SweepFolder.open(path)
            statuses = folder.statuses()
        except TorchyardError as error:
            rows.append((path.name, "", "", "", f"unreadable: {error.what}"))
            found.append({"folder": str(path), "unreadable": error.what})
            continue
        plan = folder.plan
        rows.append(sweep_row(path, plan, statuses))
        states = [status.state for status in statuses]
        found.append(
            {
                "folder": str(path),
                "name": plan.name,
                "created": plan.created,
                "executor": plan.executor.name,
                "shard": list(plan.shard),
                "null": plan.null,
                "states": {state: states.count(state) for state in dict.fromkeys(states)},
                "runs": folder.runs(),
            }
        )
    if as_json:
        print_json({"sweeps": found})
    elif rows:
        print_data(printable(sweep_table(rows)))
    else:
        talk(f"there is no sweep yet; sweeps are kept in {sweeps_home()}")
