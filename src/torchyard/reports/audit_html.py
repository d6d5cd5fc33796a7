"""An audit as one HTML page that needs nothing else: no script, no network, no other file."""

from __future__ import annotations

from collections.abc import Sequence

from torchyard.core.audit import Audit, AuditChange
from torchyard.reports.audit_charts import WIDTH, blocks_chart, curve_chart, launches_chart
from torchyard.reports.audit_wording import (
    change_rows,
    number_rows,
    seen_text,
    share_text,
    slower_text,
    verdict_sentence,
)
from torchyard.reports.html_page import asset, fingerprint, template_engine
from torchyard.reports.plain_text import one_line

__all__ = ["audit_page"]


def audit_page(
    audit: Audit,
    *,
    changes: tuple[AuditChange, ...] = (),
    changes_title: str = "",
    differences: Sequence[str] = (),
) -> str:
    """The whole page; with `changes`, how it compares with another audit."""
    style = asset("report.css") + asset("audit.css")
    return (
        template_engine()
        .get_template("audit.html.j2")
        .render(
            audit=audit,
            verdict=verdict_sentence(audit),
            good=not audit.complaints,
            numbers=number_rows(audit),
            width=WIDTH,
            blocks=blocks_chart(audit),
            launches=launches_chart(audit),
            curve=curve_chart(audit),
            disturbances=[
                {
                    "text": seen_text(one),
                    "share": share_text(one),
                    "slower": slower_text(one),
                    "advice": one_line(one.advice),
                }
                for one in audit.disturbances
            ],
            changes=change_rows(changes),
            changes_title=one_line(changes_title),
            differences=differences,
            style=style,
            style_hash=fingerprint(style),
        )
    )
