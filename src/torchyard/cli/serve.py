"""`torchyard serve`: the dashboard."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from torchyard.cli.output import common_options, print_data, print_json, talk

__all__ = ["need_dashboard", "serve"]

_HELP = """
\b
Examples:
  torchyard serve
      runs, histories and live progress, for this machine only
  torchyard serve --port 8080 --open
      on a fixed port, and show it
  torchyard serve --host 0.0.0.0 --token-file ~/.torchyard-token
      for the network; the token is asked for

Show runs, workloads, histories, comparisons and the progress of running benches in a browser. It
changes nothing. Without --host it listens for this machine only; any other address needs a token,
which is made and shown once when no file is named. Ctrl-C ends it.
"""


@click.command(help=_HELP)
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Where the runs are; the runs' home when left out.",
)
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="127.0.0.1 when left out.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="A free one when left out or 0."
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Ask for the token in this file, on loopback addresses too.",
)
@click.option("--open", "open_browser", is_flag=True, help="Show it in the browser.")
@common_options
def serve(
    home: Path | None,
    host: str,
    port: int,
    token_file: Path | None,
    open_browser: bool,
    as_json: bool,
) -> int:
    """Listen, say where, and answer until it is ended."""
    need_dashboard()
    from torchyard.dashboard.archive import Archive
    from torchyard.dashboard.serving import answer_until_ended, listen

    with listen(host, port, token_file=token_file) as listening:
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
                talk("the token in this address is shown only now")
            talk(f"showing {archive.home}; Ctrl-C ends it")
            if open_browser:
                import webbrowser

                webbrowser.open(address.url)

        answer_until_ended(archive, listening, ready=ready)
        archive.close()
    talk("ended")
    return 0


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
