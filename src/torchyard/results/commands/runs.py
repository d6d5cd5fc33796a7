"""The group `torchyard results`, and its commands `list`, `show`, `note`, `delete`, `verify` and `reindex`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import click

from torchyard.cli.group import CommandTable, LazyGroup
from torchyard.cli.options import SectionedCommand, section
from torchyard.cli.output import (
    common_options,
    print_data,
    print_json,
    print_message,
    print_result,
    printable,
)
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.results.commands.options import counted, filter_options, fresh_store, wanted_of

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
    "verify": ("torchyard.results.commands.runs:verify", "check all files of runs and list damage"),
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

Find, annotate, export and import the results of runs.
"""


@click.group(cls=LazyGroup, table=RESULTS_COMMANDS, help=_RESULTS_HELP, no_args_is_help=True)
def results() -> None:
    """Commands on stored runs."""


_LIST_HELP = """
\b
Examples:
  torchyard results list
  torchyard results list --since 7d --machine 'epyc*'
  torchyard results list --comparisons --workload models/gpt --verdict slower
  torchyard results list --revision 4f2a91c --json

List runs, newest first, or their comparisons with --comparisons. A filter on comparisons selects
runs with at least one matching comparison.
"""


@click.command("list", cls=SectionedCommand, help=_LIST_HELP)
@section("What to list")("--comparisons", is_flag=True, help="List comparisons instead of runs.")
@filter_options(limit=50)
@common_options
def list_results(comparisons: bool, as_json: bool, **options: Any) -> None:
    """List runs or comparisons."""
    from torchyard.results.report import comparison_table, run_table

    filters = wanted_of(options)
    with fresh_store() as store:
        name = "comparisons" if comparisons else "runs"
        entries: list[Any] = store.comparisons(filters) if comparisons else store.runs(filters)
    if as_json:
        print_json({name: entries})
        return
    if not entries:
        print_message(f"no matching {name} in {store.home}")
        return
    print_data(printable((comparison_table if comparisons else run_table)(entries)))
    if filters.limit is not None and len(entries) == filters.limit:
        print_message(f"only the newest {filters.limit} are shown; --limit 0 lists all")


_SHOW_HELP = """
\b
Examples:
  torchyard results show
  torchyard results show 20250131T12
  torchyard results show ./first-run --json

Show facts, verdicts, notes and the folder of a run. RUN is a run id, a unique prefix of one, a run
folder, or `latest`. `torchyard report` shows the measurements. Exit code 8 if the run is damaged.
"""


@click.command(help=_SHOW_HELP)
@click.argument("run", default="latest", metavar="[RUN]")
@common_options
def show(run: str, as_json: bool) -> int:
    """Show a run."""
    from torchyard.results.index.entries import entries_of
    from torchyard.results.report import run_text

    with fresh_store() as store:
        # Read from its folder: a run outside the results directory is not in the index.
        entries = entries_of(Path(store.run(run).folder))
    text = run_text(entries.run, entries.comparisons)
    print_result({"run": entries.run, "comparisons": entries.comparisons}, text, as_json=as_json)
    return ResultsDamaged.exit_code if entries.run.damage else 0


_NOTE_HELP = """
\b
Examples:
  torchyard results note latest "first run after the kernel update"
  torchyard results note 20250131T12 "machine was hot"

Add a note to a run that has ended. `torchyard bench --note TEXT` adds one at the start.
"""


@click.command(help=_NOTE_HELP)
@click.argument("run")
@click.argument("text")
@common_options
def note(run: str, text: str, as_json: bool) -> None:
    """Add a note to a run."""
    from torchyard.core.units import format_count
    from torchyard.results.run_changes import add_note

    with fresh_store() as store:
        entry = store.run(run)
        notes = add_note(Path(entry.folder), text)
        store.refresh()
    if as_json:
        print_json({"run": entry.id, "notes": list(notes)})
    else:
        print_message(f"{entry.id} has {format_count(len(notes), 'note')}")


_DELETE_HELP = """
\b
Examples:
  torchyard results delete 20250131T120000
  torchyard results delete 20250131T120000 20250201T080000 --yes

Permanently delete runs with all their files. If one is still running or part of a saved baseline,
nothing is deleted.
"""


@click.command(help=_DELETE_HELP)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@common_options
def delete(runs: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete runs."""
    from torchyard.results.report import run_table
    from torchyard.results.run_changes import check_may_delete, delete_run

    with fresh_store() as store:
        entries = list({entry.folder: entry for entry in map(store.run, runs)}.values())
        for entry in entries:
            check_may_delete(Path(entry.folder))
        if not yes:
            if not sys.stdin.isatty():
                raise UsageError(
                    "cannot ask for confirmation: stdin is not a terminal",
                    hint="use --yes to delete without confirmation",
                )
            print_message(run_table(entries))
            noun = "this run" if len(entries) == 1 else f"these {len(entries)} runs"
            click.confirm(f"Permanently delete {noun}?", abort=True, err=True)
        for entry in entries:
            delete_run(Path(entry.folder))
        store.refresh()
    ids = [entry.id for entry in entries]
    print_result({"deleted": ids}, "\n".join(f"deleted {run}" for run in ids), as_json=as_json)


_VERIFY_HELP = """
\b
Examples:
  torchyard results verify
  torchyard results verify latest ./first-run
  torchyard results verify --json

Read every record of the runs [default: all], check every file of a finished run against its
checksums (SHA256SUMS), and list damage by file and line. Exit code 8 if anything is damaged. In
runs of earlier releases and killed runs, only invalid records are detected.
"""


@click.command(help=_VERIFY_HELP)
@click.argument("runs", nargs=-1, metavar="[RUN...]")
@common_options
def verify(runs: tuple[str, ...], as_json: bool) -> int:
    """Verify runs."""
    from torchyard.core.units import format_bytes
    from torchyard.results.integrity import verify_run
    from torchyard.results.model import RunFilter

    with fresh_store() as store:
        entries = [store.run(run) for run in runs] if runs else store.runs(RunFilter())
    progress = counted("verifying runs")
    results = []
    for number, entry in enumerate(entries, start=1):
        results.append(verify_run(Path(entry.folder)))
        progress(number, len(entries))
    damaged = [verified for verified in results if verified.damage]
    if as_json:
        print_json({"verified": results})
    else:
        for verified in damaged:
            for item in verified.damage:
                place = f", line {item.line}" if item.line is not None else ""
                print_data(printable(f"{verified.run}/{item.file}{place}: {item.what}"))
    torn = sum(verified.torn_lines for verified in results)
    unchecked = sum(not verified.checksummed for verified in results)
    size = format_bytes(sum(verified.size_bytes for verified in results))
    records = sum(row.comparisons + row.blocks + row.launches for row in results)
    print_message(
        f"{len(results)} runs, {records} records, {size}: "
        + (f"{len(damaged)} damaged" if damaged else "no damage")
        + (f"; {torn} incomplete last lines" if torn else "")
        + (f"; {unchecked} not checksummed" if unchecked else "")
    )
    return ResultsDamaged.exit_code if damaged else 0


_REINDEX_HELP = """
\b
Examples:
  torchyard results reindex
  torchyard results reindex --json

Rebuild the index of runs, and remove leftovers of killed imports and deletions. Every command updates
and repairs the index, so this is rarely needed.
"""


@click.command(help=_REINDEX_HELP)
@common_options
def reindex(as_json: bool) -> None:
    """Rebuild the index."""
    from torchyard.results.index.store import Store
    from torchyard.results.run_changes import sweep_leftovers

    with Store.open() as store:
        removed = sweep_leftovers(store.home)
        refreshed = store.rebuild(counted("reading run folders"))
        place = str(store.place or "")
    for warning in refreshed.warnings:
        print_message(f"warning: {warning}")
    damaged = f", {refreshed.damaged} damaged" if refreshed.damaged else ""
    print_result(
        {"index": place, "refreshed": refreshed, "leftovers_removed": removed},
        f"{refreshed.runs} runs{damaged}: {place or 'the index is not stored'}",
        as_json=as_json,
    )
