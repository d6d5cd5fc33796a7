# ruff: noqa: INP001  # a module of a script beside the pages, not a package
"""The manual page torchyard(1), converted from the Markdown of the page of commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from torchyard import __version__
from torchyard.cli.commands import COMMANDS, ROOT_OPTIONS

_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
_CODE = re.compile(r"`([^`]+)`")
_LIST_ITEM = re.compile(r"- (`[^`]+`(?:, `[^`]+`)*(?: \[[^]]*\])?)(?:: (.*))?")


def man_page(commands: str, exit_codes: Mapping[int, str]) -> str:
    """Return the page in the format of man(7). `commands` is the Markdown of the page of commands."""
    sections = commands[commands.index("\n## ") :]
    lines = [
        r".\" Written by docs/generate.py; do not edit.",
        f'.TH TORCHYARD 1 "" "torchyard {__version__}" "Torchyard"',
        ".nh",
        ".ad l",
        ".SH NAME",
        r"torchyard \- compare two ways to run PyTorch, with trustworthy statistics",
        ".SH SYNOPSIS",
        r"\fBtorchyard\fR \fICOMMAND\fR [\fIOPTIONS\fR]",
        ".SH DESCRIPTION",
        "Results go to stdout, progress and errors to stderr.",
        r"Every command also has \fB\-\-json\fR (one JSON object on stdout),",
        r"\fB\-\-debug\fR (tracebacks of errors) and \fB\-\-help\fR.",
        r"Commands that show progress have \fB\-\-quiet\fR.",
        "Options with ... may be repeated, and defaults are in brackets.",
    ]
    for name, (_, about) in COMMANDS.items():
        lines += [".TP", f"\\fB{_escaped(name)}\\fR", _escaped(about)]
    lines.append(".SH OPTIONS")
    for words, about in ROOT_OPTIONS:
        lines += [".TP", f"\\fB{_escaped(words)}\\fR", _escaped(about)]
    lines += [".SH COMMANDS", *_converted(sections), ".SH EXIT STATUS"]
    for code, meaning in exit_codes.items():
        lines += [".TP", f"\\fB{code}\\fR", _escaped(meaning)]
    lines += [
        ".SH ENVIRONMENT",
        ".TP",
        r"\fBTORCHYARD_HOME\fR",
        r"Folder of runs, baselines and builds; by default \fI~/.local/share/torchyard\fR.",
        ".SH FILES",
        ".TP",
        r"\fIpyproject.toml\fR",
        r"The table \fB[tool.torchyard.COMMAND]\fR sets defaults of the options of a command.",
    ]
    return "\n".join(lines) + "\n"


def _converted(markdown: str) -> Iterator[str]:
    """Yield lines of roff for headings, fenced code, lists and paragraphs."""
    in_code = False
    paragraph: list[str] = []
    for line in [*markdown.splitlines(), ""]:
        is_prose = not in_code and not line.startswith(("```", "## ", "- `"))
        if is_prose and line.strip():
            paragraph.append(line)
            continue
        if paragraph:
            yield from (".PP", _text(" ".join(paragraph)))
            paragraph = []
        if line.startswith("```"):
            yield from (".fi", ".RE") if in_code else (".PP", ".RS", ".nf")
            in_code = not in_code
        elif in_code:
            yield _escaped(line)
        elif line.startswith("## "):
            yield f".SS {_escaped(line.removeprefix('## '))}"
        elif item := _LIST_ITEM.fullmatch(line):
            yield from (".TP", _text(item[1]), *([_text(item[2])] if item[2] else []))


def _text(line: str) -> str:
    """Return a line of prose: code in bold, links as their text."""
    parts = _CODE.split(_LINK.sub(r"\1", line))
    shown = [
        f"\\fB{_escaped(part)}\\fR" if index % 2 else _escaped(part)
        for index, part in enumerate(parts)
    ]
    return "".join(shown)


def _escaped(text: str) -> str:
    r"""Escape backslashes and hyphens, and a first character that would be a request."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("~", r"\(ti").replace("^", r"\(ha")
    return rf"\&{text}" if text.startswith((".", "'")) else text
