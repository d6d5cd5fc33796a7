"""`torchyard site`: the dashboard as files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

from torchyard.cli.output import common_options, print_data, print_json, talk

__all__ = ["site"]

_LINE_PAUSE_S: Final = 5.0

_HELP = """
\b
Examples:
  torchyard site public
      write all pages into the folder public
  torchyard site /srv/www/bench --home results/runs
      runs of another home, for a web host
  torchyard site public --share
      for everybody: nothing of the people and machines behind it

Write runs, workloads, histories and comparisons as files that need no server: open index.html, or
put the folder on any web host. Written again, only what changed is replaced. A folder that holds
anything else is left alone.
"""


@click.command(help=_HELP)
@click.argument("folder", metavar="OUTDIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Where the runs are; the runs' home when left out.",
)
@click.option(
    "--share",
    is_flag=True,
    help="Leave out host names, users, paths, values of variables and command lines.",
)
@common_options
def site(folder: Path, home: Path | None, share: bool, as_json: bool) -> None:
    """Write the site and say what changed."""
    from torchyard.dashboard.archive import Archive
    from torchyard.dashboard.site import write_site

    archive = Archive(home, progress=_Lines("reading runs"))
    for warning in archive.warnings:
        talk(f"warning: {warning}")
    written = write_site(archive, folder, share=share, told=_Lines("writing files"))
    archive.close()
    if as_json:
        print_json(
            {
                "folder": str(written.folder),
                "index": str(written.folder / "index.html"),
                "written": written.written,
                "unchanged": written.unchanged,
                "removed": written.removed,
            }
        )
        return
    print_data(str(written.folder / "index.html"))
    talk(
        f"{written.written} files written, {written.unchanged} unchanged, {written.removed} removed"
    )


class _Lines:
    """Progress of long work, a line now and then."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._next_s = time.monotonic() + _LINE_PAUSE_S

    def __call__(self, done: int, total: int) -> None:
        """Told how far it is."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _LINE_PAUSE_S
            talk(f"{self._what}: {done} of {total}")
