"""Every form of a sweep's summary, in one list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from torchyard.core.records import nearest_hint
from torchyard.core.sweep_summary import SweepSummary
from torchyard.errors import UsageError
from torchyard.reports.sweep_html import sweep_page
from torchyard.reports.sweep_json import sweep_json
from torchyard.reports.sweep_markdown import sweep_markdown
from torchyard.reports.sweep_text import sweep_text

__all__ = ["SWEEP_FORMATS", "render_sweep", "reports_beside"]

SWEEP_FORMATS: Final[Mapping[str, Callable[[SweepSummary], str]]] = {
    "text": sweep_text,
    "markdown": sweep_markdown,
    "json": sweep_json,
    "html": sweep_page,
}


def render_sweep(
    summary: SweepSummary, form: str, *, links: Mapping[str, str] | None = None
) -> str:
    """The summary in that form. `links` (see `reports_beside`) are for the page alone."""
    if form not in SWEEP_FORMATS:
        raise UsageError(
            f"{form!r} is not a form of a sweep",
            hint=nearest_hint(form, list(SWEEP_FORMATS), what="form"),
        )
    return sweep_page(summary, links=links) if form == "html" else SWEEP_FORMATS[form](summary)


def reports_beside(summary: SweepSummary, folder: Path) -> dict[str, str]:
    """Reports of the sweep's runs in a folder: `ID.html` for a run, where such a file lies there."""
    names = {run.id: f"{run.id}.html" for run in summary.runs if "/" not in run.id}
    return {run: name for run, name in names.items() if (folder / name).is_file()}
