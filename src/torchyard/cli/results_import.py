"""`torchyard results import`: bring in runs of an archive or a folder."""

from __future__ import annotations

from pathlib import Path

import click

from torchyard.cli.output import common_options, print_data, print_json, printable, talk

__all__ = ["import_results"]

_HELP = """
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


@click.command("import", help=_HELP)
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
    from torchyard.cli.results_store import counted, fresh_store
    from torchyard.core.records import encode
    from torchyard.core.units import parse_bytes
    from torchyard.errors import UsageError
    from torchyard.results.import_runs import import_runs
    from torchyard.results.run_home import runs_home

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
