"""Format the result of a search as one self-contained HTML page with the posterior as a chart."""

from __future__ import annotations

from typing import Final

from torchyard.bisect.delta import SettingsOutcome
from torchyard.bisect.model import Outcome, Request
from torchyard.bisect.report import (
    answer_text,
    differing_settings,
    effect_text,
    ends_text,
    measured_text,
    noise_text,
    set_text,
    setting_text,
    signature_text,
)
from torchyard.core.units import format_percent
from torchyard.presentation.html_page import asset, fingerprint, template_engine
from torchyard.why.model import Attribution
from torchyard.why.report import headline

_WIDTH: Final = 800.0
_HEIGHT: Final = 140.0
_MOST_ROWS: Final = 50


def outcome_page(
    request: Request,
    outcome: Outcome | SettingsOutcome,
    attribution: Attribution | None = None,
    why_page: str = "",
) -> str:
    """Return the page; `why_page` is the address of the page of the attribution."""
    style = asset("report.css") + asset("bisect.css")
    effect = outcome.effect
    content = (
        _settings_content(request, outcome)
        if isinstance(outcome, SettingsOutcome)
        else _revision_content(request, outcome)
    )
    return (
        template_engine()
        .get_template("bisect.html.j2")
        .render(
            title=f"Bisect: {request.noun} that changed the {request.quantity}",
            found=outcome.found,
            answer=answer_text(request, outcome),
            effect="" if effect is None else effect_text(effect, request.quantity),
            ends=ends_text(request, outcome),
            measured=measured_text(request, outcome),
            noise=noise_text(outcome),
            signature=signature_text(outcome),
            why="" if attribution is None else headline(attribution),
            why_page=why_page,
            noun=request.noun,
            skipped=[
                (set_text(request, one.commit) if request.settings else one.commit, one.why)
                for one in outcome.skipped
            ],
            what="Command" if request.study is None else "Workload",
            command=request.measured,
            style=style,
            style_hash=fingerprint(style),
            **content,
        )
    )


def _revision_content(request: Request, outcome: Outcome) -> dict[str, object]:
    posterior = outcome.posterior
    changes = posterior.changes[1:]
    top = max(*changes, 1e-300, 0.0)
    step = _WIDTH / len(changes)
    named = {one.commit for one in outcome.candidates}
    rows, bars = [], []
    pairs = zip(outcome.revisions[1:], changes, posterior.rounds[1:], strict=True)
    for index, (revision, change, rounds) in enumerate(pairs):
        probability = format_percent(change)
        bars.append(
            {
                "x": round(index * step, 2),
                "width": round(max(1.0, 0.8 * step), 2),
                "height": round(_HEIGHT * change / top, 2),
                "named": revision.commit in named,
                "label": f"{revision.short} {revision.subject}: {probability}",
            }
        )
        rows.append((change, (revision.short, revision.subject, probability, str(rounds))))
    # The most probable ones, in the order of the range.
    limit = sorted((one for one, _ in rows), reverse=True)[:_MOST_ROWS][-1]
    return {
        "bars": bars,
        "several": format_percent(posterior.several),
        "no_change": format_percent(posterior.no_change),
        "heading": f"{request.noun.capitalize()}s",
        "columns": (request.noun.capitalize(), "Subject", "Expected changes", "Rounds"),
        "rows": [row for change, row in rows if change >= limit][:_MOST_ROWS],
    }


def _settings_content(request: Request, outcome: SettingsOutcome) -> dict[str, object]:
    parts = {one.index: one for one in outcome.parts}
    rows = []
    for index, setting in enumerate(differing_settings(request)):
        part = parts.get(index)
        effects = (None, None) if part is None else (part.alone, part.removed)
        texts = ["" if one is None else effect_text(one, request.quantity) for one in effects]
        state = "no" if part is None else "yes" if part.needed and outcome.complete else "undecided"
        rows.append((setting_text(setting), setting.kind, state, *texts))
    return {
        "bars": (),
        "heading": "Settings that differ",
        "columns": ("Setting", "Kind", "In the smallest set", "Alone", "In the set"),
        "rows": rows,
    }
