"""Charts by Vega-Lite, inside the page: no network and no other file.

A chart is a plain Vega-Lite spec. `inline_chart` draws it now, as SVG that needs no script and
prints well. `lazy_chart` leaves the data in the page, and the runtime (`vega_runtime.py`) draws it
when a reader comes to it, which keeps pages with many charts small and quick to write.

Colours are names of the page's style (`var(--faster)`), so that a chart follows the theme. Text
from outside may be in the data of a spec and in its titles, never in an expression or in the name
of a field, which Vega reads as code. Without vl-convert there is a sentence in place of a chart.
Knows nothing of runs; loads vl-convert when a chart is drawn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from torchyard.reports.html_page import json_for_script
from torchyard.reports.plain_text import one_line, without_controls
from torchyard.reports.svg_text import clean_svg

if TYPE_CHECKING:
    from markupsafe import Markup

__all__ = [
    "MISSING",
    "VEGA_LITE",
    "chart_bases",
    "charts_available",
    "drawn_svg",
    "inline_chart",
    "lazy_chart",
    "themed",
]

VEGA_LITE: Final = "6.4"
"""The version of Vega-Lite that the specs are written for; one of those inside vl-convert."""

MISSING: Final = "There is no chart because vl-convert-python is not installed."

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
    """A figure whose picture is drawn now; `description` says in words what it shows."""
    from markupsafe import Markup

    if not charts_available():
        return _figure(title, Markup('<p class="muted">{}</p>').format(MISSING))
    svg = drawn_svg(spec, description=description)
    return _figure(title, Markup(svg))  # noqa: S704 - clean_svg keeps known elements only


def drawn_svg(spec: Mapping[str, Any], *, description: str) -> str:
    """The picture itself, with known elements only; needs vl-convert."""
    return clean_svg(
        _svg_of(json.dumps(themed(spec), allow_nan=False)), label=one_line(description)
    )


def lazy_chart(spec: Mapping[str, Any], *, title: str, description: str, base: str = "") -> Markup:
    """A figure that the page draws when it is seen.

    With `base` the spec holds only what differs from the base of that name (see `chart_bases`):
    usually its data, which may be `{"names": [...], "rows": [[...], ...]}` to save space. The page
    must hold the runtime and `charts.js`. No CSV: Vega reads it with `eval`, which pages forbid.
    """
    from markupsafe import Markup

    data = Markup(json_for_script(_finite(spec if base else themed(spec))))  # noqa: S704 - no markup
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
    """Specs that many lazy charts of a page share, once per page."""
    from markupsafe import Markup

    data = json_for_script({name: themed(spec) for name, spec in bases.items()})
    return Markup(  # noqa: S704 - no markup in it
        f'<script type="application/json" id="chart-bases">{data}</script>'
    )


def themed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with the look of our pages and without numbers that JSON has not."""
    own = spec.get("config")
    known: dict[str, Any] = _finite(
        {
            "$schema": f"https://vega.github.io/schema/vega-lite/v{VEGA_LITE}.json",
            **spec,
            "config": {**_CONFIG, **(own if isinstance(own, Mapping) else {})},
        }
    )
    return known


def _figure(title: str, inside: Markup) -> Markup:
    from markupsafe import Markup

    caption = Markup("<figcaption>{}</figcaption>").format(one_line(title)) if title else Markup("")
    return Markup('<figure class="chart">{}{}</figure>').format(caption, inside)


@cache
def _svg_of(spec: str) -> str:
    import vl_convert

    drawn: str = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])
    return drawn


def _finite(value: Any) -> Any:
    """Plain values for JSON: no infinities, no controls in texts."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return without_controls(value) if isinstance(value, str) else value
