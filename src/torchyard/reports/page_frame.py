"""What surrounds a page that is one of many, such as a run on the dashboard. No I/O.

A page by itself holds everything it needs. One of many has links to the others and shares the
program that draws its charts with them, which would be most of its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from markupsafe import Markup

__all__ = ["SHARED_SCRIPTS", "Frame"]

SHARED_SCRIPTS: Final = "'self' file:"
"""Where a page's policy lets a shared script come from: the place of the page. A browser that takes
every file for a place of its own needs the second word; on a web host it allows nothing."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Links to the other pages, and what they share."""

    navigation: Markup
    style: str
    """For the navigation, added to the page's own."""
    runtime: str
    """Address of the file with the text of `vega_runtime.runtime_script`, seen from the page."""
