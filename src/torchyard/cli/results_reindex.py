"""`torchyard results reindex`: make the index of runs anew."""

from __future__ import annotations

import click

from torchyard.cli.output import common_options, print_data, print_json, talk

__all__ = ["reindex"]

_HELP = """
\b
Examples:
  torchyard results reindex
  torchyard results reindex --json

Make the index of runs anew from the run folders, and remove what killed imports and deletions left.
Every command keeps the index up to date by itself and mends a damaged one, so this is hardly ever
needed.
"""


@click.command(help=_HELP)
@common_options
def reindex(as_json: bool) -> None:
    """Read all folders again."""
    from torchyard.cli.results_store import counted
    from torchyard.core.records import encode
    from torchyard.results.index.store import Store
    from torchyard.results.run_changes import sweep_leftovers

    with Store.open() as store:
        swept = sweep_leftovers(store.home)
        found = store.rebuild(counted("reading run folders"))
        place = str(store.place or "")
    for warning in found.warnings:
        talk(f"warning: {warning}")
    if as_json:
        print_json({"index": place, "refreshed": encode(found), "leftovers_removed": swept})
    else:
        damaged = f", {found.damaged} damaged" if found.damaged else ""
        print_data(f"{found.runs} runs{damaged}: {place or 'the index is not kept'}")
