"""`torchyard serve` and `torchyard site`: the dashboard as a server, and as static files."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import click

from torchyard.cli.options import FILE, FOLDER, Count
from torchyard.cli.output import common_options, print_message, print_result

_home = click.option(
    "--home",
    type=FOLDER,
    metavar="FOLDER",
    help="Folder of the runs. [default: the results directory]",
)
_SERVE_HELP = """
\b
Examples:
  torchyard serve
      runs, histories and live progress, for this machine only
  torchyard serve --port 8080 --open
      on a fixed port, opened in the browser
  torchyard serve --host 0.0.0.0 --token-file ~/.torchyard-token
      for the network, with a token of your own

Show runs, workloads, histories, comparisons and running benchmarks in a browser. By default only this
machine can connect, with the token in the printed URL.
"""


@click.command(help=_SERVE_HELP)
@_home
@click.option(
    "--host",
    default="127.0.0.1",
    metavar="ADDRESS",
    help="Address to listen on. [default: 127.0.0.1]",
)
@click.option(
    "--port",
    type=Count(0, 65535),
    default=0,
    help="Port to listen on; 0 chooses a free port. [default: 0]",
)
@click.option(
    "--token-file",
    type=FILE,
    metavar="FILE",
    help="Use the token in this file instead of a new one.",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="Every user of this machine can read the dashboard.",
)
@click.option("--open", "open_browser", is_flag=True, help="Open the dashboard in the browser.")
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
    """Run the dashboard server."""
    require_dashboard()
    from torchyard.dashboard.live_store import LiveStore
    from torchyard.dashboard.server import listen, serve_until_stopped
    from torchyard.results.commands.options import counted

    with ExitStack() as stack:
        listening = stack.enter_context(
            listen(host, port, token_file=token_file, no_token=no_token)
        )
        address = listening.address
        live_store = LiveStore(home, progress=counted("reading runs"))
        for warning in live_store.warnings:
            print_message(f"warning: {warning}")

        def ready() -> None:
            record = {"url": address.url, "home": str(live_store.home)}
            print_result(record, address.url, as_json=as_json)
            sys.stdout.flush()
            if address.token_is_new:
                print_message("the token in this URL is shown only once")
            print_message(f"serving {live_store.home}; press Ctrl-C to stop")
            if open_browser:
                _open_browser(address.url, stack)

        serve_until_stopped(live_store, listening, ready=ready)
        live_store.close()
    print_message("stopped")
    return 0


def _open_browser(url: str, stack: ExitStack) -> None:
    """Open the URL through a private file, because process arguments are visible to all users."""
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
        print_message(
            f"warning: the browser could not be opened ({error.strerror}); open the URL above"
        )


def require_dashboard() -> None:
    """Raise MissingTool if the packages of the `dashboard` extra are not installed."""
    from importlib.util import find_spec

    from torchyard.errors import MissingTool

    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise MissingTool(
            f"the dashboard needs {' and '.join(missing)}",
            why="they are not installed",
            hint="pip install 'torchyard[dashboard]'",
        )


_SITE_HELP = """
\b
Examples:
  torchyard site public
      write all pages to the folder public
  torchyard site /srv/www/bench --home results/runs
      runs of another folder, for a web server
  torchyard site public --share
      redacted, for publication

Write runs, workloads, histories and comparisons as static files, for a browser or any web server. Later
calls only replace changed files. A folder with other files is rejected.
"""


@click.command(help=_SITE_HELP)
@click.argument("folder", metavar="OUTDIR", type=FOLDER)
@_home
@click.option(
    "--share",
    is_flag=True,
    help="Redact host names, users, paths, values of variables and command lines.",
)
@common_options
def site(folder: Path, home: Path | None, share: bool, as_json: bool) -> None:
    """Write the dashboard as static files."""
    from torchyard.dashboard.live_store import LiveStore
    from torchyard.dashboard.site import write_site
    from torchyard.results.commands.options import counted

    live_store = LiveStore(home, progress=counted("reading runs"))
    for warning in live_store.warnings:
        print_message(f"warning: {warning}")
    site = write_site(live_store, folder, share=share, progress=counted("writing files"))
    live_store.close()
    index = str(site.folder / "index.html")
    counts = {"written": site.written, "unchanged": site.unchanged, "removed": site.removed}
    record = {**counts, "folder": str(site.folder), "index": index}
    print_result(record, index, as_json=as_json)
    if not as_json:
        print_message(
            f"{site.written} files written, {site.unchanged} unchanged, {site.removed} removed"
        )
