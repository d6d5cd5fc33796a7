"""`torchyard results export` and `import`: tables of comparisons, archives of runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from torchyard.cli.options import SectionedCommand, section
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_data,
    print_json,
    printable,
    talk,
)
from torchyard.results.commands.options import filter_options

if TYPE_CHECKING:
    from torchyard.results.index.store import Store
    from torchyard.results.model import RunEntry, Wanted


# Written out because `results` must not be loaded for `--help`; a test holds the two together.
FORMS: Final = ("csv", "jsonl", "parquet")

_write = section("What to write, and where")

_EXPORT_HELP = """
\b
Examples:
  torchyard results export --study nightly > nightly.csv
  torchyard results export --since 30d --output month.parquet
  torchyard results export --format jsonl --workload models/gpt | jq .speedup
  torchyard results export 20250131T12 --archive run.tar.gz

Write one row for each comparison, as CSV, JSON lines or Parquet (which needs `pip install
'torchyard[parquet]'`), or with --archive whole run folders for `torchyard results import`. All
runs that fit the filters; RUN chooses single ones. An archive holds logs, command lines and names
of hosts.
"""


@click.command(cls=SectionedCommand, help=_EXPORT_HELP)
@click.argument("runs", nargs=-1, metavar="[RUN...]")
@_write(
    "--format",
    "form",
    type=click.Choice(FORMS),
    help="csv when left out, or what the ending of --output says.",
)
@_write(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write here instead of to stdout.",
)
@_write(
    "--archive",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.tar.gz",
    help="Write whole run folders here instead of a table.",
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
    """Write what fits."""
    from torchyard.errors import NothingToDo, UsageError
    from torchyard.results.commands.options import fresh_store, wanted_of

    if archive is not None and (form or output):
        raise UsageError("--archive takes no --format and no --output", hint="keep one of them")
    for path, option in ((archive, "--archive"), (output, "--output")):
        if path is not None:
            check_writable(path, option=option)
    name = form or _form_of(output)
    if as_json and output is None and archive is None:
        raise UsageError(
            "--json says what was written, so it needs --output or --archive",
            hint="`--format jsonl` writes the rows themselves as JSON",
        )
    with fresh_store() as store:
        wanted = wanted_of(options)
        chosen = _chosen(store, runs, wanted)
        if not chosen:
            raise NothingToDo("no run fits", hint="`torchyard results list` takes the same filters")
        if archive is not None:
            report = _write_archive(archive, chosen)
        else:
            report = _write_rows(store, chosen, wanted, name, output, whole=not runs)
    if as_json:
        print_json(report)


def _form_of(output: Path | None) -> str:
    endings = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
    return endings.get(output.suffix, "csv") if output is not None else "csv"


def _chosen(store: Store, runs: tuple[str, ...], wanted: Wanted) -> list[RunEntry]:
    fitting = store.runs(replace(wanted, limit=None))
    if not runs:
        return fitting
    named = {store.run(text).id for text in runs}
    return [entry for entry in fitting if entry.id in named]


def _write_archive(path: Path, chosen: list[RunEntry]) -> dict[str, Any]:
    from torchyard.core.units import format_bytes
    from torchyard.errors import NothingToDo
    from torchyard.results.archive import write_archive
    from torchyard.results.commands.options import counted

    ended = [entry for entry in chosen if entry.state != "running"]
    for entry in chosen:
        if entry not in ended:
            talk(f"left out: {entry.id} is still going")
    if not ended:
        raise NothingToDo("every run that fits is still going", hint="wait for it")
    size_bytes = write_archive(
        path, [Path(entry.folder) for entry in ended], progress=counted("writing runs")
    )
    talk(f"{len(ended)} runs, {format_bytes(size_bytes)}: {path}")
    return {"archive": str(path), "runs": [run.id for run in ended], "size_bytes": size_bytes}


def _write_rows(
    store: Store,
    chosen: list[RunEntry],
    wanted: Wanted,
    form: str,
    output: Path | None,
    *,
    whole: bool,
) -> dict[str, Any]:
    from torchyard.errors import UsageError
    from torchyard.files.safe_writing import write_failed
    from torchyard.results.report import FORMS as WRITERS
    from torchyard.results.report import rows_of

    if output is None and form == "parquet" and sys.stdout.isatty():
        raise UsageError("Parquet is not for a terminal", hint="give --output FILE")
    ids = {entry.id for entry in chosen}
    found = store.comparisons(wanted if whole else replace(wanted, limit=None))
    rows = list(rows_of((entry for entry in found if entry.run in ids), chosen))
    if not whole and wanted.limit is not None:
        rows = rows[: wanted.limit]
    data = WRITERS[form](rows)
    if output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
    else:
        try:
            output.write_bytes(data)
        except OSError as error:
            raise write_failed(output, error, kept="every run") from error
        talk(f"{len(rows)} rows: {output}")
    return {"output": str(output or ""), "format": form, "rows": len(rows)}


_IMPORT_HELP = """
\b
Examples:
  torchyard results import runs.tar.gz
  torchyard results import ./first-run
  torchyard results import old-disk/torchyard/runs

Bring runs into the runs' home: from an archive of `torchyard results export --archive`, a run
folder, or a folder that holds run folders. A run that is here already is passed over, and nothing
is ever written over: a run with the id of another is refused, and the exit code is 2. An archive
with links, devices, paths that lead elsewhere or more content than --max-size is refused as a
whole, with exit code 8.
"""


@click.command("import", help=_IMPORT_HELP)
@click.argument("source", type=click.Path(exists=True, path_type=Path), metavar="ARCHIVE|FOLDER")
@click.option(
    "--max-size",
    default="16GiB",
    metavar="SIZE",
    help="What the archive's files may be together; 16GiB when left out.",
)
@common_options
def import_results(source: Path, max_size: str, as_json: bool) -> int:
    """Bring runs in."""
    from torchyard.core.records import encode
    from torchyard.core.units import parse_bytes
    from torchyard.errors import UsageError
    from torchyard.results.commands.options import counted, fresh_store
    from torchyard.results.directory import runs_home
    from torchyard.results.run_changes import import_runs

    imported = import_runs(
        source,
        runs_home(),
        largest_bytes=parse_bytes(max_size),
        progress=counted("bringing in runs"),
        unpacking=counted("unpacking, MiB"),
    )
    with fresh_store():
        pass
    if as_json:
        print_json({"imported": encode(imported)})
    else:
        lines = [*(f"imported {run}" for run in imported.runs)]
        lines += [f"already here: {run}" for run in imported.same]
        print_data(printable("\n".join(lines) or "nothing imported"))
    for name, why in imported.refused:
        talk(f"refused: {name}: {why}")
    return UsageError.exit_code if imported.refused else 0
