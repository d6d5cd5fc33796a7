"""Make text from outside safe to show: names, notes and logs of models, compilers and drivers.

Removes terminal escapes, bidirectional controls and invalid bytes. Escaping for a format (HTML,
Markdown, CSV) is left to that format.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from textwrap import wrap
from typing import Final

_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colors and cursor movement
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # titles, links and other strings, up to their end
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]",
    re.DOTALL,
)
_CONTROLS: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"  # bidi, invisible
)
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_SPACES: Final = re.compile(r"\s+")


def one_line(text: str) -> str:
    """Return the text on one line, without control characters and terminal escapes."""
    return _SPACES.sub(" ", without_controls(text)).strip()


def shortened(name: str, width: int) -> str:
    """Shorten a long name, such as that of a C++ template kernel, in the middle."""
    if len(name) <= width:
        return name
    half = (width - 3) // 2
    return f"{name[: half + 1]}...{name[-half:]}"


def plain_lines(text: str, *, last: int = 200) -> str:
    """Return the last lines of a text; of lines rewritten by a progress bar, the last state."""
    lines = _ESCAPES.sub("", text).replace("\r\n", "\n").split("\n")
    shown = [without_controls(line.rstrip("\r").rpartition("\r")[2]) for line in lines]
    while shown and not shown[-1].strip():
        shown.pop()
    omitted = max(0, len(shown) - last)
    head = [f"[{omitted} earlier lines omitted]"] if omitted else []
    return "\n".join(head + shown[omitted:])


def without_controls(text: str) -> str:
    """Return the text without control characters and terminal escapes; lines and tabs stay."""
    text = _ESCAPES.sub("", text)
    text = text.replace("\u2028", "\n").replace("\u2029", "\n")
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", text))


def aligned(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Return rows as aligned columns; those in `right` are right-aligned."""
    clean = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*clean, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in clean
    ]
    return "\n".join(lines)


def wrapped(text: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """Return lines of limited width; options and long words are not split, so they can be copied."""
    return wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]


def escaped(text: str) -> str:
    """Escape Markdown, HTML and @mentions."""
    marked = _SPECIAL.sub(r"\\\1", one_line(text))
    return marked.replace("\\<", "&lt;").replace("\\>", "&gt;").replace("@", "&#64;")


_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~!$&])")
