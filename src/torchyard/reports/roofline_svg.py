"""The roofline picture alone, as an SVG file: with colours of its own, for light and dark screens.

In a page the colours are the page's; a file that stands alone has none, so it brings them along.
"""

from __future__ import annotations

import re
from typing import Final

from torchyard.errors import MissingTool, NothingToDo
from torchyard.reports.html_page import asset
from torchyard.reports.roofline_chart import roofline_description, roofline_spec
from torchyard.reports.roofline_rows import roofline_of
from torchyard.reports.roofline_text import notes_of_roofline
from torchyard.reports.vega import charts_available, drawn_svg
from torchyard.results.run_reader import Run

__all__ = ["to_roofline_svg"]

_LIGHT: Final = re.compile(r"^:root\s*\{([^}]*)\}", re.MULTILINE)
_DARK: Final = re.compile(r'^:root\[data-theme="dark"\]\s*\{([^}]*)\}', re.MULTILINE)
_VARIABLE: Final = re.compile(r"(--[a-z]+):\s*(#[0-9a-f]{3,6})")


def to_roofline_svg(run: Run) -> str:
    """The picture of the first peak that has marks; raises when there is none."""
    if not charts_available():
        raise MissingTool(
            "a picture needs vl-convert-python, which is not installed",
            hint="install it, or use --format roofline for the table",
        )
    roofline = roofline_of(run)
    for key, peak in roofline.peaks:
        if roofline.placed(key):
            svg = drawn_svg(
                roofline_spec(key, peak, roofline),
                description=roofline_description(key, peak, roofline),
            )
            return _with_colours(svg)
    notes = notes_of_roofline(roofline)
    raise NothingToDo(
        "this run has no roofline picture",
        why=notes[0] if notes else "none of its workloads says both operations and bytes",
        hint="torchyard report --format roofline shows what is known",
    )


def _with_colours(svg: str) -> str:
    """The same picture with the page's colours inside, dark where the reader likes it dark."""
    page = asset("report.css")
    style = (
        f"svg{{background:var(--page);font-family:sans-serif;{_colours(_LIGHT, page)}}}"
        f"@media(prefers-color-scheme:dark){{svg{{{_colours(_DARK, page)}}}}}"
    )
    head, tag_end, rest = svg.partition(">")
    if 'xmlns="http://www.w3.org/2000/svg"' not in head:
        head = head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f"{head}{tag_end}<style>{style}</style>{rest}\n"


def _colours(theme: re.Pattern[str], page: str) -> str:
    found = theme.search(page)
    if found is None:
        raise AssertionError(theme.pattern)
    colours = dict(_VARIABLE.findall(found[1]))
    return "".join(f"{name}:{value};" for name, value in sorted(colours.items()))
