"""Every report format, in one list. Each reads a run and gives its text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from torchyard.reports.csv_report import to_csv
from torchyard.reports.dynamo_csv import to_dynamo_csv
from torchyard.reports.html_report import to_html
from torchyard.reports.json_report import to_json
from torchyard.reports.markdown_report import to_markdown
from torchyard.reports.roofline_svg import to_roofline_svg
from torchyard.reports.roofline_text import to_roofline_text
from torchyard.reports.terminal import to_text
from torchyard.results.run_reader import Run

__all__ = ["FORMATS", "Render"]


class Render(Protocol):
    """What a report format does."""

    def __call__(self, run: Run) -> str:
        """The whole report."""


FORMATS: Final[Mapping[str, Render]] = {
    "terminal": to_text,
    "markdown": to_markdown,
    "csv": to_csv,
    "dynamo-csv": to_dynamo_csv,
    "json": to_json,
    "html": to_html,
    "roofline": to_roofline_text,
    "roofline-svg": to_roofline_svg,
}
