"""Vega-Lite charts inside a page, without network access or other files.

`inline_chart` draws a spec now, as SVG that needs no script and prints well; the SVG is reduced to
known elements and attributes, so that nothing in it can act, whatever the data. `lazy_chart` leaves
the data in the page, and the runtime draws it when a reader scrolls to it, which keeps pages with
many charts small. Colors are names of the page's style (`var(--faster)`), so that a chart follows
the theme.

Text from outside may be in the data and titles of a spec, never in an expression or a field name,
which Vega evaluates. The runtime (Vega, Vega-Lite and Vega-Embed, bundled by vl-convert) draws
without `eval`, so a page can forbid every other script. Bundling takes seconds, so the result is
cached in the user's cache folder. Without vl-convert, a sentence replaces the chart; vl-convert is
loaded when a chart is drawn. Independent of runs.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from markupsafe import Markup

from torchyard.presentation.html_page import json_for_script
from torchyard.presentation.safe_text import one_line, without_controls
from torchyard.presentation.tables import finite

_SVG: Final = "{http://www.w3.org/2000/svg}"
_ELEMENTS: Final = frozenset(
    {"svg", "g", "path", "line", "rect", "circle", "text", "tspan", "defs", "clipPath"}
)
# fmt: off
_ATTRIBUTES: Final = frozenset({
    "clip-path", "cx", "cy", "d", "dx", "dy", "fill", "fill-opacity", "font-size", "font-style",
    "font-weight", "height", "id", "opacity", "r", "rx", "ry", "stroke", "stroke-dasharray",
    "stroke-dashoffset", "stroke-linecap", "stroke-linejoin", "stroke-opacity", "stroke-width",
    "text-anchor", "transform", "viewBox", "width", "x", "x1", "x2", "y", "y1", "y2",
})
# fmt: on
_USELESS: Final = {"opacity": "1", "x2": "0", "y2": "0", "transform": "translate(0,0)"}
_LONG_NUMBER: Final = re.compile(r"-?\d+\.\d{3,}")
_NUMBERS: Final = frozenset({"d", "transform", "x", "y", "x1", "x2", "y1", "y2", "width", "height"})
_INSIDE: Final = re.compile(r"url\(#[A-Za-z0-9_-]+\)")
_EMPTY_PATH: Final = re.compile(r"(M[-\d.,]+h0v0h-?0Z)?")


def clean_svg(text: str, *, label: str) -> str:
    """Reduce an SVG to known visible elements; `label` is its text for screen readers."""
    root = _cleaned(ET.fromstring(text))  # noqa: S314 - our own library wrote it
    if root is None:
        return ""
    # Make ids unique within a page: charts may share ids such as `clip0`.
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    for element in root.iter():
        if "id" in element.attrib:
            element.set("id", f"picture-{digest}-{element.attrib['id']}")
        if "clip-path" in element.attrib:
            element.set(
                "clip-path", element.attrib["clip-path"].replace("#", f"#picture-{digest}-")
            )
    root.set("role", "img")
    root.set("aria-label", label)
    return ET.tostring(root, encoding="unicode", short_empty_elements=True)


def _cleaned(element: ET.Element) -> ET.Element | None:
    name = element.tag.removeprefix(_SVG)
    if name not in _ELEMENTS or element.get("display") == "none":
        return None
    copy = ET.Element(name)
    for key, value in element.attrib.items():
        if key in _ATTRIBUTES and _USELESS.get(key) != value and _is_local(value):
            copy.set(key, _LONG_NUMBER.sub(_shorter, value) if key in _NUMBERS else value)
    copy.text = element.text
    for child in element:
        cleaned = _cleaned(child)
        if cleaned is not None:
            cleaned.tail = child.tail
            copy.append(cleaned)
    return None if _is_invisible(copy) else copy


def _is_local(value: str) -> bool:
    """Whether a value references only parts of the same SVG, which causes no network request."""
    return "url(" not in value.lower() or _INSIDE.fullmatch(value) is not None


def _is_invisible(element: ET.Element) -> bool:
    if element.tag == "g":
        return len(element) == 0
    if element.tag == "path":
        unpainted = element.get("stroke") is None and element.get("fill") in {None, "transparent"}
        return _EMPTY_PATH.fullmatch(element.get("d", "")) is not None or unpainted
    return False


def _shorter(number: re.Match[str]) -> str:
    return f"{float(number.group()):.2f}".rstrip("0").rstrip(".")


VEGA_LITE: Final = "6.4"
"""Version of Vega-Lite that the specs use; bundled with vl-convert."""

MISSING: Final = "Charts are unavailable because vl-convert-python is not installed."

_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_CONFIG: Final[dict[str, Any]] = {
    "aria": False,
    "background": None,
    "font": _FONT,
    "padding": 2,
    "view": {"stroke": None},
    "axis": {
        "domainColor": "var(--line)",
        "gridColor": "var(--line)",
        "tickColor": "var(--line)",
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    },
    "legend": {
        "labelColor": "var(--text)",
        "titleColor": "var(--muted)",
        "labelFontSize": 11.5,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "symbolStrokeWidth": 1.5,
    },
    "header": {
        "labelColor": "var(--text)",
        "titleColor": "var(--muted)",
        "labelFontSize": 11.5,
        "labelFontWeight": "normal",
    },
    "text": {"color": "var(--text)", "fontSize": 11},
    "point": {"filled": True, "size": 40},
}


def charts_available() -> bool:
    """Whether vl-convert is installed."""
    return find_spec("vl_convert") is not None


def inline_chart(spec: Mapping[str, Any], *, title: str, description: str) -> Markup:
    """Return a figure that is drawn now; `description` is its text for screen readers."""
    if not charts_available():
        return _figure(title, Markup('<p class="muted">{}</p>').format(MISSING))
    svg = drawn_svg(spec, description=description)
    return _figure(title, Markup(svg))  # noqa: S704 - clean_svg keeps known elements only


def drawn_svg(spec: Mapping[str, Any], *, description: str) -> str:
    """Return the chart as SVG with known elements only; needs vl-convert."""
    return clean_svg(
        _svg_of(json.dumps(themed(spec), allow_nan=False)), label=one_line(description)
    )


def lazy_chart(spec: Mapping[str, Any], *, title: str, description: str, base: str = "") -> Markup:
    """Return a figure that the page draws when it becomes visible.

    With `base`, the spec contains only the differences from that base (see `chart_bases`), usually
    its data, which may be `{"names": [...], "rows": [[...], ...]}` to save space. The page
    must contain the runtime and `charts.js`. No CSV: Vega parses it with `eval`, which pages forbid.
    """
    data = Markup(json_for_script(finite(spec, without_controls) if base else themed(spec)))  # noqa: S704 - no markup
    return _figure(
        title,
        Markup(
            '<div class="lazy-chart" role="img" aria-label="{}"{}>'
            '<script type="application/json">{}</script></div>'
        ).format(
            one_line(description),
            Markup(' data-base="{}"').format(one_line(base)) if base else Markup(""),
            data,
        ),
    )


def chart_bases(bases: Mapping[str, Mapping[str, Any]]) -> Markup:
    """Return the specs that lazy charts of a page share; once per page."""
    data = json_for_script({name: themed(spec) for name, spec in bases.items()})
    return Markup(  # noqa: S704 - no markup in it
        f'<script type="application/json" id="chart-bases">{data}</script>'
    )


def themed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec with the theme of the pages and without non-finite numbers."""
    own_config = spec.get("config")
    themed_spec: dict[str, Any] = finite(
        {
            "$schema": f"https://vega.github.io/schema/vega-lite/v{VEGA_LITE}.json",
            **spec,
            "config": {**_CONFIG, **(own_config if isinstance(own_config, Mapping) else {})},
        },
        without_controls,
    )
    return themed_spec


def _figure(title: str, inside: Markup) -> Markup:
    caption = Markup("<figcaption>{}</figcaption>").format(one_line(title)) if title else Markup("")
    return Markup('<figure class="chart">{}{}</figure>').format(caption, inside)


@cache
def _svg_of(spec: str) -> str:
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])
    return svg


# Entry point of the bundle, used by charts.js.
_ENTRY: Final = "window.torchyardEmbed = vegaEmbed;"
_LEVEL: Final = 9


def runtime_script() -> str:
    """Return the chart runtime, about 900 KB; needs vl-convert."""
    return gzip.decompress(_compressed()).decode()


def packed_runtime() -> Markup:
    """Return the compressed runtime as a page element that is unpacked when a chart becomes visible."""
    data = base64.b64encode(_compressed()).decode()
    return Markup(  # noqa: S704 - letters, digits, +, / and =
        f'<script type="application/gzip" id="chart-runtime">{data}</script>'
    )


def runtime_link(address: str) -> Markup:
    """Return the element for pages that share one file with the text of `runtime_script`."""
    return Markup(
        '<script type="application/gzip" id="chart-runtime" data-address="{}"></script>'
    ).format(address)


@cache
def _compressed() -> bytes:
    path = _cache_file()
    with suppress(OSError, EOFError, zlib.error):
        cached = path.read_bytes()
        if gzip.decompress(cached).endswith(b";"):
            return cached
    import vl_convert

    text = vl_convert.javascript_bundle(_ENTRY, vl_version=VEGA_LITE)
    compressed = gzip.compress(text.encode(), _LEVEL, mtime=0)
    with suppress(OSError):  # the cache is optional
        _keep(path, compressed)
    return compressed


def _cache_file() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(home) if home.startswith("/") else Path.home() / ".cache"
    return folder / "torchyard" / f"vega-{version('vl-convert-python')}-{VEGA_LITE}.js.gz"


def _keep(path: Path, data: bytes) -> None:
    """Write a file atomically, also with concurrent writers."""
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
