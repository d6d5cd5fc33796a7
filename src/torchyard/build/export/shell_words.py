"""Words of a shell command, quoted so that no text can become anything else. No I/O.

Names, values and paths come from recipes and users: spaces, quotes, `$` and line breaks mean
themselves. Formats that cannot hold a line break inside quotes get it as a variable.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from torchyard.errors import UsageError

__all__ = [
    "LINE_BREAK",
    "command_text",
    "comment",
    "heredoc",
    "quoted",
    "variable_name",
    "wrapped",
]

LINE_BREAK: Final = "nl=$(printf '\\nx'); nl=${nl%x}"
"""Statement that must come before words quoted in one line."""

_WIDTH: Final = 100
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")
_NOT_A_PROGRAM: Final = re.compile(
    # words and commands of the shell itself, where they stand first
    r"[.:!{}]|alias|bg|break|case|cd|command|continue|do|done|elif|else|esac|eval|exec|exit|export"
    r"|fc|fg|fi|for|getopts|hash|if|in|jobs|local|read|readonly|return|set|shift|then|times|trap"
    r"|type|ulimit|umask|unalias|unset|until|wait|while"
    # functions of exported scripts
    r"|step|show|freeze|limit_jobs|in_root|variables_\d+|step_\d+_\w*"
)


def quoted(text: str, *, one_line: bool = False) -> str:
    """The text as one word.

    With `one_line` a line break becomes "$nl" and the physical line goes on behind a backslash:
    Dockerfiles join such lines before any shell sees them.
    """
    if "\0" in text:
        raise UsageError(
            f"{text!r} holds a null character, which no shell can hand on",
            hint="take it out of the recipe",
        )
    if not one_line:
        return shlex.quote(text)
    return '"$nl"\\\n'.join(_in_one_line(line) for line in text.split("\n"))


def _in_one_line(text: str) -> str:
    """Quoted also against Apptainer: `%` starts its sections, two braces its placeholders.

    Braces are parted by the end of one quoted text and the start of the next, which are one word.
    """
    word = f"'{text}'" if text.startswith("%") and shlex.quote(text) == text else shlex.quote(text)
    return re.sub(r"\{(?=\{)", "{''", word)


def variable_name(name: str) -> str:
    """The name, if a shell can export it."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a variable in a shell",
            hint="use letters, digits and underscores in [environment.variables] and options",
        )
    return name


def command_text(
    argv: Sequence[str], variables: Sequence[tuple[str, str]] = (), *, one_line: bool = False
) -> list[str]:
    """The words of one command, with variables of its own before it."""
    words = [f"{variable_name(name)}={quoted(text, one_line=one_line)}" for name, text in variables]
    first = quoted(argv[0], one_line=one_line)
    if _NOT_A_PROGRAM.fullmatch(argv[0]):
        words.append("env")
    elif "=" in argv[0] and first == argv[0]:
        first = f"'{first}'"
    return [*words, first, *(quoted(word, one_line=one_line) for word in argv[1:])]


def wrapped(words: Sequence[str], indent: str) -> str:
    """The words in lines of a readable width, each but the first further in than `indent`.

    An option stays on one line with its value, as far as that can be told.
    """
    text, column = indent + words[0], len(indent) + _last_width(words[0])
    for number, word in enumerate(words[1:], start=1):
        needed = len(word.partition("\n")[0])
        follower = words[number + 1] if number + 1 < len(words) else ""
        if word.startswith("-") and "=" not in word and follower and not follower.startswith("-"):
            needed += 1 + len(follower.partition("\n")[0])
        if column + 1 + needed > _WIDTH and column > len(indent) + 4:
            text += f" \\\n{indent}    {word}"
            column = len(indent) + 4 + len(word)
        else:
            text += f" {word}"
            column += 1 + len(word)
        if "\n" in word:
            column = _last_width(word)
    return text


def _last_width(word: str) -> int:
    return len(word.rpartition("\n")[2])


def comment(text: str) -> str:
    """The text as it may stand behind a `#`: one line, nothing unprintable, no placeholder."""
    return _UNPRINTABLE.sub(" ", text).replace("{{", "{ {").rstrip().rstrip("\\")


def heredoc(text: str, target: str) -> str:
    """Write the text to `target` (a quoted word) as it is; it must end with a line break."""
    lines = set(text.splitlines())
    mark, count = "END_OF_FILE", 0
    while mark in lines:
        count += 1
        mark = f"END_OF_FILE_{count}"
    return f"cat >{target} <<'{mark}'\n{text}{mark}"
