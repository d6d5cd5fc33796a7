"""Markdown text of a result, ready for an upstream issue; paths, hosts and users are redacted."""

from __future__ import annotations

import getpass
import platform

from torchyard.bisect.delta import SettingsOutcome
from torchyard.bisect.model import Outcome, Request
from torchyard.bisect.report import (
    answer_text,
    differing_settings,
    effect_text,
    ends_text,
    measured_text,
    noise_text,
    posterior_picture,
    setting_text,
)
from torchyard.presentation.redaction import Redactor
from torchyard.presentation.safe_text import escaped, one_line
from torchyard.why.model import Attribution
from torchyard.why.report import headline

__all__ = ["issue_text"]


def issue_text(
    request: Request, outcome: Outcome | SettingsOutcome, attribution: Attribution | None = None
) -> str:
    """Return the text."""
    redactor = Redactor(hosts=[platform.node()], users=[getpass.getuser()])

    def clean(text: str) -> str:
        return escaped(redactor.clean(text, assignments=False))

    lines = [f"### {clean(answer_text(request, outcome))}", ""]
    if outcome.effect is not None:
        lines.append(f"- Effect: {effect_text(outcome.effect, request.quantity)}")
    ends = ends_text(request, outcome)
    if ends:
        lines.append(f"- Bad against good: {ends}")
    command = one_line(redactor.clean(request.measured, assignments=False)).replace("`", "'")
    if attribution is not None:
        lines.append(f"- Why: {clean(one_line(headline(attribution)))}")
    what = "Command" if request.study is None else "Workload"
    lines += [f"- Measured: {measured_text(request, outcome)}", f"- {what}: `{command}`"]
    if noise_text(outcome):
        lines.append(f"- Warning: {noise_text(outcome)}")
    lines.append(
        f"- Machine: {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    )
    lines.append("")
    if isinstance(outcome, SettingsOutcome):
        lines += ["| setting | alone | in the set |", "|---|---|---|"]
        differing = differing_settings(request)
        parts = outcome.parts
        for part in parts:
            effects = [
                "" if one is None else effect_text(one, request.quantity)
                for one in (part.alone, part.removed)
            ]
            cells = [clean(setting_text(differing[part.index])), *effects]
            lines.append(f"| {' | '.join(cells)} |")
        lines += [
            "",
            f"Other settings that differ, without a shown effect: {len(differing) - len(parts)}.",
        ]
    else:
        lines += [f"| {request.noun} | subject | expected changes |", "|---|---|---|"]
        probabilities = dict(
            zip((one.commit for one in outcome.revisions), outcome.posterior.changes, strict=True)
        )
        lines += [
            f"| {clean(one.commit)} | {clean(one.subject)} | {probabilities.get(one.commit, 0.0):.3f} |"
            for one in outcome.candidates
        ]
        lines += ["", "Posterior over the range:", "", "```"]
        lines += [posterior_picture(outcome.posterior), "```"]
    lines += ["", _method(request), ""]
    return "\n".join(lines)


def _method(request: Request) -> str:
    if request.settings:
        return (
            "Method: delta debugging; each step is a sequential test of interleaved runs, and all tests "
            "together err with at most 5 %."
        )
    return (
        f"Method: each round runs good, bad and one {request.noun} between them in random order; a Bayesian "
        "change-point model gives the probabilities."
    )
