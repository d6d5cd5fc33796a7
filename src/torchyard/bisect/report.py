"""The result of a search as text, JSON object, Markdown for an issue, and self-contained HTML page."""

from __future__ import annotations

import getpass
import math
import platform
import textwrap
from typing import Any, Final

from torchyard.bisect.delta import SettingsOutcome
from torchyard.bisect.model import Outcome, Request, Revision, Setting
from torchyard.bisect.posterior import Effect, Posterior
from torchyard.core.records import encode
from torchyard.core.units import format_count, format_duration, format_percent
from torchyard.presentation.html_page import asset, fingerprint, template_engine
from torchyard.presentation.redaction import Redactor
from torchyard.presentation.safe_text import escaped, one_line
from torchyard.stats.pairs import DIRTY_SHARE_LIMIT
from torchyard.why.model import Attribution
from torchyard.why.report import headline

_WIDTH: Final = 80
_PICTURE: Final = 36
_LEVELS: Final = " .:-=+*#"
_MOST_LISTED: Final = 20
_INTERACTION: Final = 0.5
"""Settings interact if their effects alone sum to less than this share of their common effect."""


def posterior_picture(posterior: Posterior) -> str:
    """Return where the change is, from good to bad; each character stands for some revisions."""
    changes = posterior.changes[1:]
    columns = min(_PICTURE, len(changes))
    masses = [0.0] * columns
    for index, value in enumerate(changes):
        masses[index * columns // len(changes)] += value
    top = max(*masses, 1e-300) if columns > 1 else max(masses[0], 1e-300)
    picture = "".join(_LEVELS[math.ceil(mass / top * (len(_LEVELS) - 1) - 0.05)] for mass in masses)
    return f"good [{picture}] bad"


def progress_text(text: str, posterior: Posterior | None) -> str:
    """Return one line of progress."""
    if posterior is None:
        return text
    best = format_percent(max(posterior.single))
    return f"{posterior_picture(posterior)} {best:>6}  {text}"


def outcome_text(request: Request, outcome: Outcome | SettingsOutcome) -> str:
    """Return the result as text for 80 columns."""
    if isinstance(outcome, SettingsOutcome):
        lines = [*_settings_answer(request, outcome), ""]
    else:
        posterior = outcome.posterior
        lines = [*_answer(request, outcome), ""]
        lines.append(f"posterior   {posterior_picture(posterior)}")
        lines.append(
            f"            several changes {format_percent(posterior.several)}, "
            f"no change {format_percent(posterior.no_change)}"
        )
    ends = ends_text(request, outcome)
    if ends:
        lines.append(f"bad vs good {ends}")
    if signature_text(outcome):
        lines.append(f"signature   {signature_text(outcome)}")
    lines.append(f"measured    {measured_text(request, outcome)}")
    if noise_text(outcome):
        lines.append(f"warning     {noise_text(outcome)}")
    for one in outcome.skipped:
        reason = " ".join(one.why.split())
        name = set_text(request, one.commit) if request.settings else one.commit[:10]
        lines.append(textwrap.shorten(f"skipped     {name}  {reason}", _WIDTH))
    return "\n".join(lines) + "\n"


def answer_text(request: Request, outcome: Outcome | SettingsOutcome) -> str:
    """Return the answer in one sentence."""
    if isinstance(outcome, SettingsOutcome):
        differing = differing_settings(request)
        names = ", ".join(
            setting_text(differing[one.index]) for one in outcome.parts[:_MOST_LISTED]
        )
        if outcome.found:
            return f"The {request.quantity} changes with {names}"
        return f"Undecided: the difference is within {len(outcome.parts)} settings: {names}"
    if outcome.ending == "culprit":
        last, count = outcome.candidates[-1], len(outcome.candidates)
        which = f"{request.noun} {last.short} ({last.subject})"
        if count > 1:
            others = format_count(count - 1, request.noun)
            before = f"one of the {others}" if count > 2 else f"the {request.noun}"  # noqa: PLR2004
            which += f", or {before} before it, which cannot be measured"
        probability = format_percent(outcome.posterior.single[outcome.posterior.best])
        return f"The {request.quantity} changed with {which}, probability {probability}"
    if outcome.ending == "several":
        ranges = ", and ".join(
            f"after {low[:10]} up to {high[:10]}" for low, high in outcome.ranges
        )
        return f"The {request.quantity} changed several times: {ranges}"
    if outcome.ending == "no-change":
        return "No change: further rounds did not confirm that good and bad differ"
    return f"Undecided: the change is within {format_count(len(outcome.candidates), request.noun)}"


def ends_text(request: Request, outcome: Outcome | SettingsOutcome) -> str:
    """Return the difference of both ends."""
    if outcome.failed is not None:
        good, bad = (f"{failed} of {runs}" for failed, runs in outcome.failed)
        did = "was wrong" if request.metric == "accuracy" else "failed"
        return f"bad {did} in {bad} runs, good in {good}"
    estimate = outcome.estimate
    if estimate is None or estimate.interval is None:
        return ""
    low, high = 1.0 / estimate.interval.high, 1.0 / estimate.interval.low
    return effect_text(Effect(ratio=1.0 / estimate.speedup, low=low, high=high), request.quantity)


def measured_text(request: Request, outcome: Outcome | SettingsOutcome) -> str:
    """Return how much was measured."""
    if isinstance(outcome, SettingsOutcome):
        of = format_count(outcome.tests, "test")
    else:
        of = format_count(len(outcome.revisions), request.noun)
    rounds = format_count(outcome.rounds, "round")
    text = f"{rounds} of {of}, {format_duration(outcome.elapsed_s * 1e9)}"
    return f"{text}, {outcome.disturbed} disturbed" if outcome.disturbed else text


def signature_text(outcome: Outcome | SettingsOutcome) -> str:
    """Return in what the work of the culprit differs from that of the revision before it, if known."""
    if isinstance(outcome, SettingsOutcome) or outcome.signature is None:
        return ""
    return f"differs in {', '.join(outcome.signature)}" if outcome.signature else "unchanged"


def noise_text(outcome: Outcome | SettingsOutcome) -> str:
    """Return a warning if most rounds were disturbed: all are used then, and effects may be wrong."""
    if outcome.disturbed <= DIRTY_SHARE_LIMIT * outcome.rounds:
        return ""
    return "noisy machine: do not use the size of the effect"


def outcome_json(request: Request, outcome: Outcome | SettingsOutcome) -> dict[str, Any]:
    """Return the JSON object of a result."""
    shared = {
        "axis": f"{request.noun}s",
        "metric": request.metric,
        "good_against_bad": encode(outcome.estimate),
        "failed_runs": encode(outcome.failed),
        "skipped": encode(outcome.skipped),
        "rounds": outcome.rounds,
        "disturbed_rounds": outcome.disturbed,
        "elapsed_s": outcome.elapsed_s,
    }
    if isinstance(outcome, SettingsOutcome):
        differing = differing_settings(request)
        return {
            "result": "settings" if outcome.found else "remaining",
            "settings": [
                {**encode(differing[one.index]), **encode(one), "index": one.index}
                for one in outcome.parts
            ],
            "effect": encode(outcome.effect),
            "interaction": interact(outcome),
            "tests": outcome.tests,
            **shared,
        }
    return {
        "result": outcome.ending,
        "candidates": encode(outcome.candidates),
        "effect": encode(outcome.effect),
        "signature": encode(outcome.signature),
        "ranges": [{"after": low, "up_to": high} for low, high in outcome.ranges],
        "posterior": {
            "single": {
                one.commit: probability
                for one, probability in zip(
                    outcome.revisions, outcome.posterior.single, strict=True
                )
                if probability > 0.0
            },
            "several": outcome.posterior.several,
            "no_change": outcome.posterior.no_change,
        },
        **shared,
    }


def differing_settings(request: Request) -> list[Setting]:
    """Return the settings that differ, in the order of their indices."""
    return [one for one in request.settings if one.good != one.bad]


def setting_text(setting: Setting) -> str:
    """Return a setting with both values."""
    good, bad = ("(unset)" if one is None else one for one in (setting.good, setting.bad))
    return f"{setting.name}: {good} -> {bad}"


def set_text(request: Request, name: str) -> str:
    """Return the settings of a set that have the bad value."""
    bits = int(name, 16)
    names = [one.name for i, one in enumerate(differing_settings(request)) if bits >> i & 1]
    return ", ".join(names)


def interact(outcome: SettingsOutcome) -> bool:
    """Whether the settings of the set matter together, much more than the sum of each alone."""
    alone = [one.alone for one in outcome.parts]
    if outcome.effect is None or len(alone) < 2:  # noqa: PLR2004
        return False
    total = math.log(outcome.effect.ratio)
    parts = sum(math.log(one.ratio) for one in alone if one is not None)
    return None not in alone and parts / total < _INTERACTION


def effect_text(effect: Effect, quantity: str) -> str:
    """Return an effect as a percentage with its interval."""
    values = (effect.ratio, effect.low, effect.high)
    texts = [format_percent(one - 1.0, signed=True) for one in values]
    return f"{texts[0]} {quantity} (95 % CI {texts[1]} to {texts[2]})"


def _settings_answer(request: Request, outcome: SettingsOutcome) -> list[str]:
    differing = differing_settings(request)
    count = f"{len(outcome.parts)} of {format_count(len(differing), 'setting')}"
    if not outcome.complete:
        lines = [f"undecided   the time is used up; {count} contain the difference:"]
    elif outcome.found:
        lines = [f"culprit     {count}:"]
    else:
        lines = [f"undecided   {count} remain, not all of which are shown to matter:"]
    for part in outcome.parts[:_MOST_LISTED]:
        text = setting_text(differing[part.index])
        lines.append(" " * 12 + textwrap.shorten(text, _WIDTH - 12, placeholder=" ..."))
        if part.alone is not None:
            lines.append(f"              alone:      {effect_text(part.alone, request.quantity)}")
        if part.removed is not None:
            lines.append(f"              in the set: {effect_text(part.removed, request.quantity)}")
    if len(outcome.parts) > _MOST_LISTED:
        lines.append(f"            and {len(outcome.parts) - _MOST_LISTED} more")
    if interact(outcome):
        lines.append("            They interact: together they do more than the sum of each alone.")
    if outcome.effect is not None:
        lines.append(f"effect      {effect_text(outcome.effect, request.quantity)}")
    if not outcome.complete:
        lines.append("            The same command with a longer --time resumes the search.")
    return lines


def _answer(request: Request, outcome: Outcome) -> list[str]:
    """Return the first lines: what was found."""
    posterior = outcome.posterior
    if outcome.ending == "culprit":
        probability = format_percent(posterior.single[posterior.best])
        effect = outcome.effect
        lines = [_line("culprit", outcome.candidates[-1])]
        if len(outcome.candidates) > 1:
            lines = ["culprit     one of these; only the last one could be measured:"]
            lines += [_line("", one) for one in outcome.candidates]
        lines.append(f"probability {probability}")
        if effect is not None:
            lines.append(f"effect      {effect_text(effect, request.quantity)}")
        return lines
    if outcome.ending == "several":
        lines = [f"several     more than one {request.noun} changed the {request.quantity}:"]
        lines += [
            f"            after {low[:10]}, up to {high[:10]}" for low, high in outcome.ranges
        ]
        return [*lines, "            Search each range by itself."]
    if outcome.ending == "no-change":
        return ["no change   further rounds did not confirm that good and bad differ"]
    count = format_count(len(outcome.candidates), request.noun)
    lines = [f"undecided   the time is used up; {count} contain the change with 95 %:"]
    lines += [_line("", one) for one in outcome.candidates[:_MOST_LISTED]]
    more = len(outcome.candidates) - _MOST_LISTED
    if more > 0:
        lines.append(f"            and {format_count(more, f'more {request.noun}')}")
    return [*lines, "            The same command with a longer --time resumes the search."]


def _line(label: str, revision: Revision) -> str:
    return f"{label:<12}" + textwrap.shorten(
        f"{revision.short}  {revision.subject}", _WIDTH - 12, placeholder=" ..."
    )


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
    if signature_text(outcome):
        lines.append(f"- Signature: {signature_text(outcome)}")
    if request.recipe:
        built = " ".join((request.recipe, *request.build_settings))
        lines.append(f"- Recipe: {clean(one_line(built))}")
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
        for one in outcome.candidates:
            value = probabilities.get(one.commit)
            text = "cannot be measured" if value is None else f"{value:.3f}"
            lines.append(f"| {clean(one.commit)} | {clean(one.subject)} | {text} |")
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


_PAGE_WIDTH: Final = 800.0
_PAGE_HEIGHT: Final = 140.0
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
    step = _PAGE_WIDTH / len(changes)
    named = {one.commit for one in outcome.candidates}
    rows, bars = [], []
    pairs = zip(outcome.revisions[1:], changes, posterior.rounds[1:], strict=True)
    for index, (revision, change, rounds) in enumerate(pairs):
        probability = format_percent(change)
        bars.append(
            {
                "x": round(index * step, 2),
                "width": round(max(1.0, 0.8 * step), 2),
                "height": round(_PAGE_HEIGHT * change / top, 2),
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
