"""`torchyard results list`, `show`, `note`, `delete`, `verify` and `reindex`."""

from __future__ import annotations

import sys
from typing import Any

import click

from torchyard.cli.options import SectionedCommand, section
from torchyard.cli.output import common_options, print_data, print_json, printable, talk
from torchyard.results.commands.options import filter_options

_LIST_HELP = """
\b
Examples:
  torchyard results list
  torchyard results list --since 7d --machine 'epyc*'
  torchyard results list --comparisons --workload models/gpt --verdict slower
  torchyard results list --revision 4f2a91c --json

List runs, newest first, or with --comparisons what they found. A filter that is about comparisons
lists the runs that have such a comparison.
"""


@click.command("list", cls=SectionedCommand, help=_LIST_HELP)
@section("What to list")("--comparisons", is_flag=True, help="List comparisons instead of runs.")
@filter_options(limit=50)
@common_options
def list_results(comparisons: bool, as_json: bool, **options: Any) -> None:
    """List what the store finds."""
    from torchyard.core.records import encode
    from torchyard.results.commands.options import fresh_store, wanted_of
    from torchyard.results.report import comparison_table, run_table

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


_SHOW_HELP = """
\b
Examples:
  torchyard results show
  torchyard results show 20250131T12
  torchyard results show ./first-run --json

Show what is known of a run: facts, verdicts, notes, and where it is. RUN is the id of a run, the
beginning of one, a run's folder, or `latest`. `torchyard report` shows how it was measured. Ends
with exit code 8 when the run is damaged.
"""


@click.command(help=_SHOW_HELP)
@click.argument("run", default="latest", metavar="[RUN]")
@common_options
def show(run: str, as_json: bool) -> int:
    """Show a run."""
    from pathlib import Path

    from torchyard.core.records import encode
    from torchyard.errors import ResultsDamaged
    from torchyard.results.commands.options import fresh_store
    from torchyard.results.index.entries import entries_of
    from torchyard.results.report import run_text

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


_NOTE_HELP = """
\b
Examples:
  torchyard results note latest "the first run after the update of the kernel"
  torchyard results note 20250131T12 "machine was hot"

Keep a note with a run that has ended. Lists, reports and histories show it. `torchyard bench
--note TEXT` keeps one from the start.
"""


@click.command(help=_NOTE_HELP)
@click.argument("run")
@click.argument("text")
@common_options
def note(run: str, text: str, as_json: bool) -> None:
    """Add a note."""
    from pathlib import Path

    from torchyard.results.commands.options import fresh_store
    from torchyard.results.run_changes import add_note

    with fresh_store() as store:
        found = store.run(run)
        notes = add_note(Path(found.folder), text)
        store.refresh()
    if as_json:
        print_json({"run": found.id, "notes": list(notes)})
    else:
        talk(f"{found.id} has {len(notes)} note{'s' if len(notes) > 1 else ''}")


_DELETE_HELP = """
\b
Examples:
  torchyard results delete 20250131T120000
  torchyard results delete 20250131T120000 20250201T080000 --yes

Remove runs with everything in them, for good. Each RUN is the id of a run, the beginning of one, or
a run's folder. A run that is going on, or that a saved baseline names, is refused, and then none
is removed.
"""


@click.command(help=_DELETE_HELP)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
def delete(runs: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Remove runs."""
    from pathlib import Path

    from torchyard.errors import UsageError
    from torchyard.results.commands.options import fresh_store
    from torchyard.results.report import run_table
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


_VERIFY_HELP = """
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


@click.command(help=_VERIFY_HELP)
@click.argument("runs", nargs=-1, metavar="[RUN...]")
@common_options
def verify(runs: tuple[str, ...], as_json: bool) -> int:
    """Read everything."""
    from pathlib import Path

    from torchyard.core.records import encode
    from torchyard.core.units import format_bytes
    from torchyard.errors import ResultsDamaged
    from torchyard.results.commands.options import counted, fresh_store
    from torchyard.results.integrity import verify_run
    from torchyard.results.model import Wanted

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


_REINDEX_HELP = """
\b
Examples:
  torchyard results reindex
  torchyard results reindex --json

Make the index of runs anew from the run folders, and remove what killed imports and deletions left.
Every command keeps the index up to date by itself and mends a damaged one, so this is hardly ever
needed.
"""


@click.command(help=_REINDEX_HELP)
@common_options
def reindex(as_json: bool) -> None:
    """Read all folders again."""
    from torchyard.core.records import encode
    from torchyard.results.commands.options import counted
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
