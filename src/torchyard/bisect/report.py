"""Texts of a search: the posterior as a line of characters, the result, and the JSON object."""

from __future__ import annotations

import math
import textwrap
from typing import Any, Final

from torchyard.bisect.model import Outcome, Revision
from torchyard.bisect.posterior import Posterior
from torchyard.core.records import encode
from torchyard.core.units import format_count, format_duration, format_percent

_WIDTH: Final = 80
_PICTURE: Final = 36
_LEVELS: Final = " .:-=+*#"
_MOST_LISTED: Final = 20


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


def outcome_text(outcome: Outcome) -> str:
    """Return the result as text for 80 columns."""
    posterior, estimate = outcome.posterior, outcome.estimate
    lines = [*_answer(outcome), ""]
    lines.append(f"posterior   {posterior_picture(posterior)}")
    lines.append(
        f"            several changes {format_percent(posterior.several)}, "
        f"no change {format_percent(posterior.no_change)}"
    )
    if estimate.interval is not None:
        low, high = 1.0 / estimate.interval.high, 1.0 / estimate.interval.low
        lines.append(f"bad vs good {_change(1.0 / estimate.speedup, low, high)}")
    lines.append(
        f"measured    {format_count(outcome.rounds, 'round')} of "
        f"{format_count(len(outcome.revisions), 'revision')}, "
        f"{format_duration(outcome.elapsed_s * 1e9)}"
    )
    for one in outcome.skipped:
        reason = " ".join(one.why.split())
        lines.append(textwrap.shorten(f"skipped     {one.commit[:10]}  {reason}", _WIDTH))
    return "\n".join(lines) + "\n"


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Return the JSON object of a result."""
    return {
        "result": outcome.ending,
        "candidates": encode(outcome.candidates),
        "effect": encode(outcome.effect),
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
        "good_against_bad": encode(outcome.estimate),
        "skipped": encode(outcome.skipped),
        "rounds": outcome.rounds,
        "elapsed_s": outcome.elapsed_s,
    }


def _answer(outcome: Outcome) -> list[str]:
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
            lines.append(f"effect      {_change(effect.ratio, effect.low, effect.high)}")
        return lines
    if outcome.ending == "several":
        lines = ["several     more than one revision changed the time:"]
        lines += [
            f"            after {low[:10]}, up to {high[:10]}" for low, high in outcome.ranges
        ]
        return [*lines, "            Search each range with its own --good and --bad."]
    if outcome.ending == "no-change":
        return ["no change   further rounds did not confirm that good and bad differ"]
    count = format_count(len(outcome.candidates), "revision")
    lines = [f"undecided   the time is used up; {count} contain the change with 95 %:"]
    lines += [_line("", one) for one in outcome.candidates[:_MOST_LISTED]]
    more = len(outcome.candidates) - _MOST_LISTED
    if more > 0:
        lines.append(f"            and {format_count(more, 'more revision')}")
    return [*lines, "            The same command with a longer --time resumes the search."]


def _line(label: str, revision: Revision) -> str:
    return f"{label:<12}" + textwrap.shorten(
        f"{revision.short}  {revision.subject}", _WIDTH - 12, placeholder=" ..."
    )


def _change(ratio: float, low: float, high: float) -> str:
    texts = [format_percent(one - 1.0, signed=True) for one in (ratio, low, high)]
    return f"{texts[0]} time (95 % CI {texts[1]} to {texts[2]})"
