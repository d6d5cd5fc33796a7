"""`torchyard results show`: what is known of one run."""

from __future__ import annotations

import click

from torchyard.cli.output import common_options, print_data, print_json, printable

__all__ = ["show"]

_HELP = """
\b
Examples:
  torchyard results show
  torchyard results show 20250131T12
  torchyard results show ./first-run --json

Show what is known of a run: facts, verdicts, notes, and where it is. RUN is the id of a run, the
beginning of one, a run's folder, or `latest`. `torchyard report` shows how it was measured. Ends
with exit code 8 when the run is damaged.
"""


@click.command(help=_HELP)
@click.argument("run", default="latest", metavar="[RUN]")
@common_options
def show(run: str, as_json: bool) -> int:
    """Show a run."""
    from pathlib import Path

    from torchyard.cli.results_store import fresh_store
    from torchyard.cli.results_text import run_text
    from torchyard.core.records import encode
    from torchyard.errors import ResultsDamaged
    from torchyard.results.index.entries import entries_of

    with fresh_store() as store:
        # Read from its folder: a run outside of the home is not in the index.
        found = entries_of(Path(store.run(run).folder))
    if as_json:
        print_json(
            {"run": encode(found.run), "comparisons": [encode(row) for row in found.comparisons]}
        )
    else:
        print_data(printable(run_text(found.run, found.comparisons)))
    return ResultsDamaged.exit_code if found.run.damage else 0
