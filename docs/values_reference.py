# ruff: noqa: INP001  # beside the pages, not a package
"""The reference page about patterns of wasted work. Used by generate.py, which writes it."""

from __future__ import annotations

from torchyard.values.pattern_texts import Advice, load_pattern_texts

_ABOUT = """\
What `torchyard values` finds. A tensor is *computed* when an operator of the program made it new from other
values: fills, random numbers, copies, the lists of tensors that optimisers work on, and what an operator makes
inside of itself are not. Bits are compared, not values; views are not writes; memory is told apart by its identity,
not by its address; and memory that nothing was written to holds no values.
"""
_RULE = """\
But for guards and unchanged results, which have rules of their own, what was seen in less than a third of the calls
at a place (nine tenths for operators that give back their input), or in the first of three or more steps alone, is how programs start, and is not reported.
"""


def patterns_page(written_by: str) -> str:
    """Every pattern: its rule, why it is waste, what to do, when not to believe it."""
    texts = load_pattern_texts()
    lines = [written_by, "# Patterns of wasted work\n"]
    lines += [_ABOUT, _RULE]
    for name, text in texts.patterns.items():
        lines += [f"## {name[0].upper()}{name[1:]}\n", f"{_sentence(text.short)}\n"]
        lines += [f"**Rule.** {_one_line(text.definition)}\n"]
        lines += [f"**Why it is waste.** {_one_line(text.why)}\n"]
        lines += [f"**When not to believe it.** {_one_line(text.doubts)}\n"]
        known = [advice for advice in texts.advice if advice.pattern == name]
        if known:
            lines += ["| where | what to do |", "|---|---|"]
            lines += [f"| {_where(advice)} | {_one_line(advice.text)} |" for advice in known]
            lines += [f"| elsewhere | {_one_line(text.suggestion)} |", ""]
        else:
            lines += [f"**What to do.** {_one_line(text.suggestion)}\n"]
    return "\n".join(lines).rstrip() + "\n"


def _where(advice: Advice) -> str:
    parts = []
    if advice.operators:
        parts.append(", ".join(f"`{name}`" for name in advice.operators))
    if advice.inside:
        parts.append("inside an operator" if advice.inside == "*" else f"inside `{advice.inside}`")
    if advice.detail:
        parts.append(f"“{advice.detail}”")
    if advice.dtype:
        parts.append(advice.dtype)
    if advice.fits:
        parts.append(f"that fits {advice.fits}")
    if advice.backward:
        parts.append("in a backward pass")
    return " ".join(parts)


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("{", "*").replace("}", "*")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:].rstrip(".") + "."
