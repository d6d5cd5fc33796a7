"""`torchyard serve` and `torchyard site`: the dashboard as a server, and as static files."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from torchyard.cli.options import Count
from torchyard.cli.output import common_options, print_data, print_json, talk

_SERVE_HELP = """
\b
Examples:
  torchyard serve
      runs, histories and live progress, for this machine only
  torchyard serve --port 8080 --open
      on a fixed port, and show it
  torchyard serve --host 0.0.0.0 --token-file ~/.torchyard-token
      for the network, with a token of your own

Show runs, workloads, histories, comparisons and the progress of running benches in a browser. It
changes nothing. By default only this machine can connect. Other users of the machine can connect
too, so the printed address contains a token, which the browser then keeps as a cookie. Ctrl-C
stops it.
"""


@click.command(help=_SERVE_HELP)
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Where the runs are; the runs' home when left out.",
)
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="[default: 127.0.0.1]")
@click.option("--port", type=Count(0, 65535), default=0, help="0 takes a free port. [default: 0]")
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Use the token in this file instead of a new one.",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="Ask for no token: every user of this machine can read the dashboard.",
)
@click.option("--open", "open_browser", is_flag=True, help="Show it in the browser.")
@common_options
def serve(
    home: Path | None,
    host: str,
    port: int,
    token_file: Path | None,
    no_token: bool,
    open_browser: bool,
    as_json: bool,
) -> int:
    """Listen, say where, and answer until it is ended."""
    need_dashboard()
    from torchyard.dashboard.live_store import Archive
    from torchyard.dashboard.server import answer_until_ended, listen

    with ExitStack() as stack:
        listening = stack.enter_context(
            listen(host, port, token_file=token_file, no_token=no_token)
        )
        address = listening.address
        archive = Archive(home, progress=_say_reading)
        for warning in archive.warnings:
            talk(f"warning: {warning}")

        def ready() -> None:
            if as_json:
                print_json({"url": address.url, "home": str(archive.home)})
            else:
                print_data(address.url)
            sys.stdout.flush()
            if address.token_is_new:
                talk("the token in this address is shown only once")
            talk(f"showing {archive.home}; Ctrl-C ends it")
            if open_browser:
                _open_browser(address.url, stack)

        answer_until_ended(archive, listening, ready=ready)
        archive.close()
    talk("ended")
    return 0


def _open_browser(url: str, stack: ExitStack) -> None:
    """Open the address through a private file: every user can see arguments of a process."""
    import tempfile
    import webbrowser
    from html import escape

    try:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torchyard-")))
        page = folder / "open-dashboard.html"
        page.write_text(
            f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url={escape(url)}">',
            encoding="utf-8",
        )
        webbrowser.open(page.as_uri())
    except OSError as error:
        talk(f"warning: the browser was not opened ({error.strerror}); open the address above")


def need_dashboard() -> None:
    """Raise with the way to mend it when the extra packages are not installed."""
    from importlib.util import find_spec

    from torchyard.errors import MissingTool

    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise MissingTool(
            f"the dashboard needs {' and '.join(missing)}",
            why="they are not installed beside Torchyard",
            hint="pip install 'torchyard[dashboard]'",
        )


def _say_reading(done: int, total: int) -> None:
    talk(f"reading runs: {done} of {total}")


_LINE_PAUSE_S: Final = 5.0

_SITE_HELP = """
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


@click.command(help=_SITE_HELP)
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
    from torchyard.dashboard.live_store import Archive
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
