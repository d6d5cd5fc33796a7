"""A machine as text and as JSON, for the command that shows it. Prints nothing itself."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, Final

from torchyard.core.machine import Advice, Fact, MachineView
from torchyard.core.records import encode

__all__ = ["DEFAULT_WIDTH", "machine_json", "machine_text"]

DEFAULT_WIDTH: Final = 100
_NAME: Final = 32
_LEAST_WIDTH: Final = 60


def machine_text(view: MachineView, *, notes: tuple[str, ...] = (), width: int = 0) -> str:
    """Facts by section, then advice, then the verdict: what matters most is read last."""
    width = max(width or DEFAULT_WIDTH, _LEAST_WIDTH)
    lines: list[str] = []
    for section in dict.fromkeys(fact.section for fact in view.facts):
        facts = [fact for fact in view.facts if fact.section == section]
        lines += ["", section, *_section_lines(facts, width)]
    lines += ["", "advice, largest effect first"] if view.advice else []
    for number, advice in enumerate(view.advice, start=1):
        lines += _advice_lines(number, advice, width)
    lines.append("")
    for note in notes:
        lines += textwrap.wrap(note, width)
    lines += textwrap.wrap(verdict(view), width)
    return "\n".join(lines[1:])


def machine_json(view: MachineView, *, tune: dict[str, Any] | None) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "fit": view.fit,
        "facts": [encode(fact) for fact in view.facts],
        "advice": [encode(advice) for advice in view.advice],
        "tune": tune,
    }


def verdict(view: MachineView) -> str:
    """One sentence."""
    wrong = [advice.name for advice in view.advice if advice.unfit]
    if wrong:
        return f"not fit for benchmarks now ({', '.join(wrong)}): numbers must not be believed"
    if not view.advice:
        return "fit for benchmarks, and nothing to advise"
    large = sum(advice.effect == "large" for advice in view.advice)
    return (
        f"fit for benchmarks, with advice: {large} of {len(view.advice)} with a large effect; "
        "`torchyard machine audit` measures what it is worth"
    )


def _section_lines(facts: list[Fact], width: int) -> Iterator[str]:
    """What is known first, then what is not, by reason."""
    reasons: dict[str, list[str]] = {}
    for fact in facts:
        if fact.value is None:
            reasons.setdefault(fact.unavailable, []).append(fact.name)
        else:
            yield from _row(fact.name, fact.value, width)
    for because, names in reasons.items():
        text = f"{', '.join(names)}, because {because}"
        yield from _row("unavailable", text, width)


def _row(name: str, value: str, width: int) -> Iterator[str]:
    column = max(_NAME, len(name) + 1)
    wrapped = textwrap.wrap(value, width - 2 - column, break_on_hyphens=False) or [""]
    yield f"  {name:<{column}}{wrapped[0]}"
    for line in wrapped[1:]:
        yield f"  {'':<{column}}{line}"


def _advice_lines(number: int, advice: Advice, width: int) -> Iterator[str]:
    head = f"{number:>3}. {'unfit' if advice.unfit else advice.effect:<7} "
    yield from _wrapped(head, advice.what, width)
    inner = " " * 5
    yield from _wrapped(inner + "why     ", advice.why, width)
    if advice.mend:
        needs = [("root", advice.needs_root), ("a restart of the machine", advice.needs_reboot)]
        needed = " and ".join(word for word, wanted in needs if wanted)
        yield from _wrapped(
            inner + "mend    ", advice.mend + (f"  (needs {needed})" if needed else ""), width
        )


def _wrapped(head: str, text: str, width: int) -> Iterator[str]:
    # Commands are copied from here: a break behind a hyphen would cut an option in two.
    wrapped = textwrap.wrap(
        text, width - len(head), break_on_hyphens=False, break_long_words=False
    ) or [""]
    yield head + wrapped[0]
    for line in wrapped[1:]:
        yield " " * len(head) + line
