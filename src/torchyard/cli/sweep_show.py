"""`torchyard sweep show`: every cell of a sweep, and why those that failed did."""

from __future__ import annotations

import click

from torchyard.cli.output import common_options, print_data, print_json, printable, talk

__all__ = ["show"]

_HELP = """
\b
Examples:
  torchyard sweep show
  torchyard sweep show 20250131T12
  torchyard sweep show ./sweep --json

Show the cells of a sweep: done with their verdicts, running and with what, waiting, or failed with
the reason and the log. SWEEP is a sweep's folder, its name or the beginning of it, or `latest`. Reads the folder only,
so it works while the sweep runs, on any machine that sees the folder.
"""


@click.command(help=_HELP)
@click.argument("sweep", default="latest", metavar="[SWEEP]")
@common_options
def show(sweep: str, as_json: bool) -> None:
    """Show a sweep."""
    from torchyard.cli.sweep_choice import find_sweep
    from torchyard.cli.sweep_text import cell_table, counts_text, failed_text, rows_of
    from torchyard.core.records import encode
    from torchyard.results.sweep_folder import SweepFolder

    folder = SweepFolder.open(find_sweep(sweep))
    statuses = folder.statuses()
    runs = folder.runs()
    if as_json:
        print_json(
            {
                "folder": str(folder.folder),
                "plan": encode(folder.plan),
                "cells": [encode(status) for status in statuses],
                "runs": runs,
            }
        )
        return
    rows = {status.cell.id: rows_of(status, folder.folder) for status in statuses}
    parts = [
        f"{folder.plan.name}: {counts_text(statuses)}",
        cell_table(statuses, rows),
        failed_text(statuses, rows, folder.folder),
        "\n".join(f"run of {name}: {path}" for name, path in runs.items()),
    ]
    print_data(printable("\n\n".join(part for part in parts if part)))
    if any(status.state in ("waiting", "running", "queued") for status in statuses):
        talk(f"go on with it: torchyard sweep --resume {folder.folder}")
