"""`torchyard results export` and `import`: tables of comparisons, archives of runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from torchyard.cli.options import FILE, SectionedCommand, section
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_json,
    print_message,
    print_result,
)
from torchyard.errors import NothingToDo, UsageError
from torchyard.results.commands.options import counted, filter_options, fresh_store, wanted_of

if TYPE_CHECKING:
    from torchyard.results.index.store import Store
    from torchyard.results.model import RunEntry, RunFilter


# Repeated here because `--help` must not load `results.report`; a test compares the two.
FORMS: Final = ("csv", "jsonl", "parquet")

_write = section("Output")

_EXPORT_HELP = """
\b
Examples:
  torchyard results export --study nightly > nightly.csv
  torchyard results export --since 30d --output month.parquet
  torchyard results export --format jsonl --workload models/gpt | jq .speedup
  torchyard results export 20250131T12 --archive run.tar.gz

Write one row per comparison as CSV, JSON lines or Parquet (`pip install 'torchyard[parquet]'`), or
with --archive whole run folders, with logs, command lines and host names. Exports all runs that match
the filters, or only the given RUNs.
"""


@click.command(cls=SectionedCommand, help=_EXPORT_HELP)
@click.argument("runs", nargs=-1, metavar="[RUN...]")
@_write(
    "--format",
    "form",
    type=click.Choice(FORMS),
    help="Table format. [default: from the suffix of --output, else csv]",
)
@_write("--output", type=FILE, metavar="FILE", help="Output file. [default: stdout]")
@_write(
    "--archive",
    type=FILE,
    metavar="FILE.tar.gz",
    help="Write whole run folders to an archive.",
)
@filter_options(limit=None)
@common_options
def export(
    runs: tuple[str, ...],
    form: str | None,
    output: Path | None,
    archive: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Export comparisons or runs."""
    if archive is not None and (form or output):
        raise UsageError(
            "--archive cannot be combined with --format or --output", hint="remove one of them"
        )
    for path, option in ((archive, "--archive"), (output, "--output")):
        if path is not None:
            check_writable(path, option=option)
    endings = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
    name = form or endings.get(output.suffix if output is not None else "", "csv")
    if as_json and output is None and archive is None:
        raise UsageError(
            "--json needs --output or --archive",
            why="it prints a summary of what was written",
            hint="use --format jsonl to write the rows as JSON",
        )
    with fresh_store() as store:
        filters = wanted_of(options)
        chosen = _chosen(store, runs, filters)
        if not chosen:
            raise NothingToDo(
                "no matching run", hint="check the filters with `torchyard results list`"
            )
        if archive is not None:
            report = _write_archive(archive, chosen)
        else:
            report = _write_rows(store, chosen, filters, name, output, whole=not runs)
    if as_json:
        print_json(report)


def _chosen(store: Store, runs: tuple[str, ...], filters: RunFilter) -> list[RunEntry]:
    matching = store.runs(replace(filters, limit=None))
    if not runs:
        return matching
    named = {store.run(text).id for text in runs}
    return [entry for entry in matching if entry.id in named]


def _write_archive(path: Path, chosen: list[RunEntry]) -> dict[str, Any]:
    from torchyard.core.units import format_bytes
    from torchyard.results.archive import write_archive

    finished = [entry for entry in chosen if entry.state != "running"]
    for entry in chosen:
        if entry not in finished:
            print_message(f"skipped: {entry.id} is still running")
    if not finished:
        raise NothingToDo(
            "all matching runs are still running", hint="wait until they have finished"
        )
    size_bytes = write_archive(
        path, [Path(entry.folder) for entry in finished], progress=counted("writing runs")
    )
    print_message(f"{len(finished)} runs, {format_bytes(size_bytes)}: {path}")
    return {"archive": str(path), "runs": [run.id for run in finished], "size_bytes": size_bytes}


def _write_rows(
    store: Store,
    chosen: list[RunEntry],
    filters: RunFilter,
    form: str,
    output: Path | None,
    *,
    whole: bool,
) -> dict[str, Any]:
    from torchyard.files.safe_writing import write_errors
    from torchyard.results.report import FORMS as WRITERS
    from torchyard.results.report import rows_of

    if output is None and form == "parquet" and sys.stdout.isatty():
        raise UsageError("Parquet cannot be written to a terminal", hint="use --output FILE")
    ids = {entry.id for entry in chosen}
    comparisons = store.comparisons(filters if whole else replace(filters, limit=None))
    rows = list(rows_of((entry for entry in comparisons if entry.run in ids), chosen))
    if not whole and filters.limit is not None:
        rows = rows[: filters.limit]
    data = WRITERS[form](rows)
    if output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
    else:
        with write_errors(output, kept="every run"):
            output.write_bytes(data)
        print_message(f"{len(rows)} rows: {output}")
    return {"output": str(output or ""), "format": form, "rows": len(rows)}


_IMPORT_HELP = """
\b
Examples:
  torchyard results import runs.tar.gz
  torchyard results import ./first-run
  torchyard results import old-disk/torchyard/runs

Copy runs into the results directory: from an archive of `torchyard results export --archive`, a run
folder, or a folder with run folders. Another run with the same id is rejected, with exit code 2; an
archive with unsafe content or more than --max-size completely, with exit code 8.
"""


@click.command("import", help=_IMPORT_HELP)
@click.argument("source", type=click.Path(exists=True, path_type=Path), metavar="ARCHIVE|FOLDER")
@click.option(
    "--max-size",
    default="16GiB",
    metavar="SIZE",
    help="Maximum unpacked size of the archive. [default: 16GiB]",
)
@common_options
def import_results(source: Path, max_size: str, as_json: bool) -> int:
    """Import runs."""
    from torchyard.core.units import parse_bytes
    from torchyard.results.directory import runs_home
    from torchyard.results.run_changes import import_runs

    imported = import_runs(
        source,
        runs_home(),
        largest_bytes=parse_bytes(max_size),
        progress=counted("importing runs"),
        unpacking=counted("unpacking, MiB"),
    )
    with fresh_store():
        pass
    lines = [f"imported {run}" for run in imported.runs]
    lines += [f"already present: {run}" for run in imported.same]
    text = "\n".join(lines) or "nothing imported"
    print_result({"imported": imported}, text, as_json=as_json)
    for name, why in imported.refused:
        print_message(f"rejected: {name}: {why}")
    return UsageError.exit_code if imported.refused else 0
