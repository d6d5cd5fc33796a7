"""Every form of a comparison of two sides, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torchyard.core.cross_comparison import CrossComparison
from torchyard.reports.compare_data import compare_csv, compare_json
from torchyard.reports.compare_html import compare_html
from torchyard.reports.compare_markdown import compare_markdown
from torchyard.reports.compare_text import compare_text

__all__ = ["COMPARE_FORMATS"]

COMPARE_FORMATS: Final[dict[str, Callable[[CrossComparison], str]]] = {
    "terminal": compare_text,
    "json": compare_json,
    "csv": compare_csv,
    "html": compare_html,
    "markdown": compare_markdown,
}
