"""`torchyard results verify`: read everything and list what is damaged."""

from __future__ import annotations

import click

from torchyard.cli.output import common_options, print_data, print_json, printable, talk

__all__ = ["verify"]

_HELP = """
\b
Examples:
  torchyard results verify
  torchyard results verify latest ./first-run
  torchyard results verify --json

Read every record of the runs, samples and launches too, check every file of a run that has ended
against its checksums (SHA256SUMS), and list what is damaged by file and line. Changes nothing. All
runs of the runs' home when none is named. Ends with exit code 8 when anything is damaged. Runs of
earlier releases and runs that were killed are "not checksummed": there, only what makes a record
invalid is found. A last line that a kill cut off is no damage: everything that reads leaves it out.
"""


@click.command(help=_HELP)
@click.argument("runs", nargs=-1, metavar="[RUN...]")
@common_options
def verify(runs: tuple[str, ...], as_json: bool) -> int:
    """Read everything."""
    from pathlib import Path

    from torchyard.cli.results_store import counted, fresh_store
    from torchyard.core.records import encode
    from torchyard.core.stored import Wanted
    from torchyard.core.units import format_bytes
    from torchyard.errors import ResultsDamaged
    from torchyard.results.verification import verify_run

    with fresh_store() as store:
        entries = [store.run(run) for run in runs] if runs else store.runs(Wanted())
    progress = counted("verifying runs")
    found = []
    for number, entry in enumerate(entries, start=1):
        found.append(verify_run(Path(entry.folder)))
        progress(number, len(entries))
    damaged = [verified for verified in found if verified.damage]
    if as_json:
        print_json({"verified": [encode(verified) for verified in found]})
    else:
        for verified in damaged:
            for item in verified.damage:
                place = f", line {item.line}" if item.line is not None else ""
                print_data(printable(f"{verified.run}/{item.file}{place}: {item.what}"))
    torn = sum(verified.torn_lines for verified in found)
    bare = sum(not verified.checksummed for verified in found)
    size = format_bytes(sum(verified.size_bytes for verified in found))
    records = sum(row.comparisons + row.blocks + row.launches for row in found)
    talk(
        f"{len(found)} runs, {records} records, {size}: "
        + (f"{len(damaged)} damaged" if damaged else "nothing is damaged")
        + (f"; {torn} last lines cut off by a kill" if torn else "")
        + (f"; {bare} not checksummed" if bare else "")
    )
    return ResultsDamaged.exit_code if damaged else 0
