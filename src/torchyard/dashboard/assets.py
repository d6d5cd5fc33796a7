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

__all__ = [
    "asset_kinds",
    "asset_text",
    "charts_name",
    "runtime_name",
    "script_name",
    "style_name",
    "theme_name",
]

_DIGEST_LETTERS: Final = 10


@cache
def style_name() -> str:
    """The look of the report and what the dashboard adds to it."""
    return f"dashboard-{_digest(_style())}.css"


@cache
def script_name() -> str:
    """Sorting, filtering and live progress."""
    return f"dashboard-{_digest(asset('dashboard.js'))}.js"


@cache
def theme_name() -> str:
    """What sets the theme before anything is seen."""
    return f"theme-{_digest(asset('theme.js'))}.js"


@cache
def charts_name() -> str:
    """What draws the charts that a page holds as data."""
    return f"charts-{_digest(asset('charts.js'))}.js"


@cache
def runtime_name() -> str:
    """Vega, which `charts` asks for; empty when it is not installed."""
    # Named by its versions: making it takes seconds, and a name must be there before.
    return f"vega-{version('vl-convert-python')}-{VEGA_LITE}.js" if charts_available() else ""


def asset_text(name: str) -> str | None:
    """The content under this name; None when there is none."""
    made = _assets().get(name)
    return made() if made is not None else None


def asset_kinds() -> Mapping[str, str]:
    """Every name with its media type."""
    return {name: "text/css" if name.endswith(".css") else "text/javascript" for name in _assets()}


def _assets() -> dict[str, Callable[[], str]]:
    found: dict[str, Callable[[], str]] = {
        style_name(): _style,
        script_name(): lambda: asset("dashboard.js"),
        theme_name(): lambda: asset("theme.js"),
        charts_name(): lambda: asset("charts.js"),
    }
    if runtime_name():
        found[runtime_name()] = runtime_script
    return found


@cache
def _style() -> str:
    names = ("report.css", "charts.css", "compare.css", "dashboard_navigation.css", "dashboard.css")
    return "".join(map(asset, names))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LETTERS]
