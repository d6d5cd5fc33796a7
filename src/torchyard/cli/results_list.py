"""`torchyard results list`: runs or comparisons, by any filter."""

from __future__ import annotations

from typing import Any

import click

from torchyard.cli.output import common_options, print_data, print_json, printable, talk
from torchyard.cli.results_filter import filter_options
from torchyard.cli.sections import SectionedCommand, section

__all__ = ["list_results"]

_HELP = """
\b
Examples:
  torchyard results list
  torchyard results list --since 7d --machine 'epyc*'
  torchyard results list --comparisons --workload models/gpt --verdict slower
  torchyard results list --revision 4f2a91c --json

List runs, newest first, or with --comparisons what they found. A filter that is about comparisons
lists the runs that have such a comparison.
"""


@click.command("list", cls=SectionedCommand, help=_HELP)
@section("What to list")("--comparisons", is_flag=True, help="List comparisons instead of runs.")
@filter_options(limit=50)
@common_options
def list_results(comparisons: bool, as_json: bool, **options: Any) -> None:
    """List what the store finds."""
    from torchyard.cli.results_filter import wanted_of
    from torchyard.cli.results_store import fresh_store
    from torchyard.cli.results_text import comparison_table, run_table
    from torchyard.core.records import encode

    wanted = wanted_of(options)
    with fresh_store() as store:
        name = "comparisons" if comparisons else "runs"
        found: list[Any] = store.comparisons(wanted) if comparisons else store.runs(wanted)
    if as_json:
        print_json({name: [encode(entry) for entry in found]})
        return
    if not found:
        talk(f"no {name} fit; runs are kept in {store.home}")
        return
    print_data(printable((comparison_table if comparisons else run_table)(found)))
    if wanted.limit is not None and len(found) == wanted.limit:
        talk(f"the newest {wanted.limit}; --limit 0 lists all")
