"""Style sheets and scripts shared by pages, under names that contain a hash of their content.

A browser may therefore cache them forever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from typing import Final

from torchyard.presentation.html_page import asset
from torchyard.presentation.vega import VEGA_LITE, charts_available, runtime_script

_DIGEST_LETTERS: Final = 10


@cache
def style_name() -> str:
    """Return the name of the style sheet."""
    return f"dashboard-{_digest(_style())}.css"


@cache
def script_name() -> str:
    """Return the name of the script for sorting, filtering and live progress."""
    return f"dashboard-{_digest(asset('dashboard.js'))}.js"


@cache
def theme_name() -> str:
    """Return the name of the script that sets the theme before the page is shown."""
    return f"theme-{_digest(asset('theme.js'))}.js"


@cache
def charts_name() -> str:
    """Return the name of the script that draws charts from data in the page."""
    return f"charts-{_digest(asset('charts.js'))}.js"


@cache
def runtime_name() -> str:
    """Return the name of the Vega script; empty if it is not installed."""
    # Named by versions, because creating it takes seconds.
    return f"vega-{version('vl-convert-python')}-{VEGA_LITE}.js" if charts_available() else ""


def asset_text(name: str) -> str | None:
    """Return the content of an asset; None if there is none of that name."""
    create = _assets().get(name)
    return create() if create is not None else None


def asset_kinds() -> Mapping[str, str]:
    """Return the media types of all assets by name."""
    return {name: "text/css" if name.endswith(".css") else "text/javascript" for name in _assets()}


def _assets() -> dict[str, Callable[[], str]]:
    assets: dict[str, Callable[[], str]] = {
        style_name(): _style,
        script_name(): lambda: asset("dashboard.js"),
        theme_name(): lambda: asset("theme.js"),
        charts_name(): lambda: asset("charts.js"),
    }
    if runtime_name():
        assets[runtime_name()] = runtime_script
    return assets


@cache
def _style() -> str:
    names = ("report.css", "charts.css", "compare.css", "dashboard_navigation.css", "dashboard.css")
    return "".join(map(asset, names))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LETTERS]
