"""What a tune changed, as plain text: a sentence first, then a table for each set of knobs."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from torchyard.core.audit import NOISY_MINUTES, Audit
from torchyard.core.tune_effect import TuneEffect
from torchyard.core.units import format_percent
from torchyard.reports.audit_text import change_text
from torchyard.reports.plain_text import one_line
from torchyard.reports.wording import ABSENT

__all__ = ["effect_sentence", "effects_text"]

_WIDTH: Final = 100
_HOW: Final = (
    "Plain is the same machine before the tune and after it was put back. A ratio below 1 is "
    "quieter; it is sure only when its 95% interval lies below 1."
)
_MANY: Final = "Of {rows} rows, about {chance:.1f} would look sure by chance alone."


def effects_text(effects: Sequence[TuneEffect], *, user: bool) -> str:
    """The whole report."""
    lines = [
        f"{one_line(effect.what).capitalize()}: {effect_sentence(effect, user=user)}"
        for effect in effects
    ]
    rows = sum(len(effect.changes) for effect in effects)
    many = f" {_MANY.format(rows=rows, chance=0.05 * rows)}" if len(effects) > 1 else ""
    lines += ["", *wrap(_HOW + many, _WIDTH)]
    for effect in effects:
        knobs = ", ".join(map(one_line, effect.written)) or "nothing"
        title = f"{effect.what} (changed: {knobs})"
        table = change_text(effect.changes, title=title, names=("plain", "tuned"))
        lines += ["", table.rstrip()]
        lines.append(f"  resolves in {NOISY_MINUTES} minutes: {_resolves(effect)}")
        if effect.unsteady:
            lines.append(
                f"  NOT PROVEN: the plain audits differ from each other ({', '.join(effect.unsteady)}); "
                "the machine changed by itself"
            )
        lines += [
            f"  refused: {one_line(knob)}, because {one_line(reason)}"
            for knob, reason in effect.refused
        ]
    return "\n".join(lines) + "\n"


def effect_sentence(effect: TuneEffect, *, user: bool) -> str:
    """What is left of the noise, or that nothing could be shown."""
    sure = [change for change in effect.changes if change.verdict == "quieter"]
    worse = [change for change in effect.changes if change.verdict == "noisier"]
    said = [
        f"{one_line(change.name)} {format_percent(change.ratio or 0.0)} of the spread is left"
        for change in sure
    ]
    said += [
        f"{one_line(change.name)} the spread is {change.ratio or 0.0:.1f} times as large"
        for change in worse
    ]
    if said and effect.unsteady:
        return "; ".join(said) + ", but the machine changed by itself meanwhile: not proven."
    if said:
        return "; ".join(said) + "."
    what = "what a user may do leaves the noise as it is" if user else "it makes no difference"
    return f"no change could be shown: {what}, or the audits were too short to tell."


def _resolves(effect: TuneEffect) -> str:
    before = " and ".join(_difference(audit) for audit in effect.plain)
    return f"{before} plain, {_difference(effect.tuned)} tuned"


def _difference(audit: Audit) -> str:
    found = audit.in_minutes(NOISY_MINUTES)
    if found is None or found.difference is None:
        return ABSENT
    return format_percent(found.difference)
