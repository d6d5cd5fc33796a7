"""The program that draws lazy charts in the browser: Vega, Vega-Lite and Vega-Embed, from vl-convert.

`runtime_script` is the text, for a server or a folder of pages; `packed_runtime` puts it into a
page, compressed, and the page unpacks and runs it when the first chart comes into view. Bundling
costs seconds of processor time, so the result is kept in the user's cache. It draws without
`eval`: a page can forbid itself every script but this one, by its fingerprint.
"""

from __future__ import annotations

import base64
import gzip
import os
import tempfile
import zlib
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torchyard.reports.vega import VEGA_LITE

if TYPE_CHECKING:
    from markupsafe import Markup

__all__ = ["packed_runtime", "runtime_link", "runtime_script"]

# All that charts.js asks for; the name is on no other page.
_ENTRY: Final = "window.torchyardEmbed = vegaEmbed;"
_LEVEL: Final = 9


def runtime_script() -> str:
    """The whole program, about 900 KB; needs vl-convert."""
    return gzip.decompress(_compressed()).decode()


def packed_runtime() -> Markup:
    """The program as an element of a page that costs nothing until a chart is seen."""
    from markupsafe import Markup

    data = base64.b64encode(_compressed()).decode()
    return Markup(  # noqa: S704 - letters, digits, +, / and =
        f'<script type="application/gzip" id="chart-runtime">{data}</script>'
    )


def runtime_link(address: str) -> Markup:
    """The same for pages that share one file with the text of `runtime_script`."""
    from markupsafe import Markup

    return Markup(
        '<script type="application/gzip" id="chart-runtime" data-address="{}"></script>'
    ).format(address)


@cache
def _compressed() -> bytes:
    path = _cache_file()
    with suppress(OSError, EOFError, zlib.error):
        kept = path.read_bytes()
        if gzip.decompress(kept).endswith(b";"):
            return kept
    import vl_convert

    text = vl_convert.javascript_bundle(_ENTRY, vl_version=VEGA_LITE)
    made = gzip.compress(text.encode(), _LEVEL, mtime=0)
    with suppress(OSError):  # a home that cannot be written costs time, nothing else
        _keep(path, made)
    return made


def _cache_file() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(home) if home.startswith("/") else Path.home() / ".cache"
    return folder / "torchyard" / f"vega-{version('vl-convert-python')}-{VEGA_LITE}.js.gz"


def _keep(path: Path, data: bytes) -> None:
    """Whole or not at all, also with two writers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(data)
            file.flush()
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
