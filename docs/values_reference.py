# ruff: noqa: INP001  # beside the pages, not a package
"""Generate the reference page about patterns of wasted work; used by generate.py."""

from __future__ import annotations

from torchyard.values.pattern_texts import load_pattern_texts

_ABOUT = """\
A tensor is *computed* if an operator of the program created it from other values;
fills, random numbers, copies, tensor lists of optimizers and temporaries inside operators are not. Bits are compared, not
values. Views are not writes. Memory is identified by its allocation, not its address; uninitialized memory has no values.
`torchyard explain PATTERN` says why a pattern is waste and what to do.
"""
_RULE = """\
Except for guards and unchanged results, a pattern is not reported if it occurred in less than a third of the calls at a
location (nine tenths for operators that return their input), or only in the first of three or more steps (start-up).
"""


def patterns_page(written_by: str) -> str:
    """Return the page of all patterns: rule and exceptions."""
    texts = load_pattern_texts()
    lines = [written_by, "# Patterns of wasted work\n"]
    lines += [_ABOUT, _RULE]
    for name, text in texts.patterns.items():
        lines += [f"## {name[0].upper()}{name[1:]}\n", f"{_sentence(text.short)}\n"]
        lines += [f"**Rule.** {_one_line(text.definition)}\n"]
        lines += [f"**Exceptions.** {_one_line(text.doubts)}\n"]
    return "\n".join(lines).rstrip() + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("{", "*").replace("}", "*")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:].rstrip(".") + "."
