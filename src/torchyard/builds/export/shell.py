"""A step as shell statements: quoted words, variables, folders, files, commands. No I/O.

All words are quoted. Variables that most steps share are written once; each step then sets only the
differences.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from torchyard.builds.export.plain_actions import plain_actions
from torchyard.builds.plan import Command, Plan, Step, Variables, WriteFile
from torchyard.errors import UsageError

LINE_BREAK: Final = "nl=$(printf '\\nx'); nl=${nl%x}"
"""Statement that must precede words quoted with `one_line`."""

_WIDTH: Final = 100
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")
_NOT_A_PROGRAM: Final = re.compile(
    # keywords and builtins of the shell
    r"[.:!{}]|alias|bg|break|case|cd|command|continue|do|done|elif|else|esac|eval|exec|exit|export"
    r"|fc|fg|fi|for|getopts|hash|if|in|jobs|local|read|readonly|return|set|shift|then|times|trap"
    r"|type|ulimit|umask|unalias|unset|until|wait|while"
    # functions of exported scripts
    r"|step|show|freeze|limit_jobs|in_root|variables_\d+|step_\d+_\w*"
)


def quoted(text: str, *, one_line: bool = False) -> str:
    """Quote a text as one word.

    With `one_line` a line break becomes "$nl" and the physical line continues after a backslash:
    Dockerfiles join such lines before the shell sees them.
    """
    if "\0" in text:
        raise UsageError(
            f"{text!r} contains a null character, which a shell cannot pass on",
            hint="remove it from the recipe",
        )
    if not one_line:
        return shlex.quote(text)
    return '"$nl"\\\n'.join(_in_one_line(line) for line in text.split("\n"))


def _in_one_line(text: str) -> str:
    """Quote also for Apptainer, where `%` starts sections and two braces start placeholders.

    Braces are separated by empty quotes, which do not change the word.
    """
    word = f"'{text}'" if text.startswith("%") and shlex.quote(text) == text else shlex.quote(text)
    return re.sub(r"\{(?=\{)", "{''", word)


def variable_name(name: str) -> str:
    """Return the name; raise UsageError if a shell cannot export it."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid name of a shell variable",
            hint="use letters, digits and underscores in [environment.variables] and options",
        )
    return name


def command_text(
    argv: Sequence[str], variables: Sequence[tuple[str, str]] = (), *, one_line: bool = False
) -> list[str]:
    """Return the words of a command, preceded by its variables."""
    words = [f"{variable_name(name)}={quoted(text, one_line=one_line)}" for name, text in variables]
    first = quoted(argv[0], one_line=one_line)
    if _NOT_A_PROGRAM.fullmatch(argv[0]):
        words.append("env")
    elif "=" in argv[0] and first == argv[0]:
        first = f"'{first}'"
    return [*words, first, *(quoted(word, one_line=one_line) for word in argv[1:])]


def wrapped(words: Sequence[str], indent: str) -> str:
    """Join words to lines of limited width; continuation lines are indented further.

    An option and its value stay on one line where possible.
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
    """Return a text that is safe in a comment: one line, printable, no placeholder."""
    return _UNPRINTABLE.sub(" ", text).replace("{{", "{ {").rstrip().rstrip("\\")


def heredoc(text: str, target: str) -> str:
    """Return a statement that writes a text, ending with a line break, to a quoted `target`."""
    lines = set(text.splitlines())
    mark, count = "END_OF_FILE", 0
    while mark in lines:
        count += 1
        mark = f"END_OF_FILE_{count}"
    return f"cat >{target} <<'{mark}'\n{text}{mark}"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How the variables of a step differ from the shared ones."""

    more: Variables
    """Added or changed."""
    without: tuple[str, ...]
    """Names of shared variables that the step lacks."""

    @staticmethod
    def of(step: Step, shared: Variables) -> Difference:
        """Return the difference of a step from the shared variables."""
        own = dict(step.variables)
        common = dict(shared)
        return Difference(
            more=tuple(pair for pair in own.items() if common.get(pair[0]) != pair[1]),
            without=tuple(name for name in common if name not in own),
        )

    def beyond(self, other: Difference) -> Variables | None:
        """Return the variables beyond those of another; None if it does not include the other."""
        if self.without != other.without or not set(other.more) <= set(self.more):
            return None
        return tuple(pair for pair in self.more if pair not in other.more)


def shared_by_most(steps: Sequence[Step]) -> Variables:
    """Return the variables that more than half of the steps have with the same value."""
    pairs = Counter(pair for step in steps for pair in dict(step.variables).items())
    return tuple(pair for pair, count in pairs.items() if 2 * count > len(steps))


def distinct_differences(steps: Sequence[Step]) -> dict[Difference, tuple[str, ...]]:
    """Return difference from the shared variables -> names of the steps with it."""
    shared = shared_by_most(steps)
    users: dict[Difference, tuple[str, ...]] = {}
    for step in steps:
        difference = Difference.of(step, shared)
        if difference.more or difference.without:
            users[difference] = (*users.get(difference, ()), step.name)
    return users


def own_variables(step: Step, command: Command) -> Variables:
    """Return the variables of a command that its step does not have."""
    common = dict(step.variables)
    return tuple(pair for pair in command.variables if common.get(pair[0]) != pair[1])


JOB_VARIABLES: Final = ("MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL")
"""Both are needed: some projects read the first; CMake, make and SCons steps the second."""

_INDENT: Final = "    "


def step_statements(plan: Plan, step: Step, *, one_line: bool) -> list[str]:
    """Return the statements of a step."""
    actions = [plain for action in step.actions for plain in plain_actions(plan, action)]
    statements: list[str] = []
    here = ""
    for action in actions:
        if isinstance(action, WriteFile):
            statements += file_statements(action, one_line=one_line)
            continue
        folder = action.folder or plan.folder
        if step.root and action.inside_root:
            statements.append(_in_root(action, step, folder))
            continue
        if folder != here:
            statements.append(f"{_INDENT}cd {quoted(folder, one_line=one_line)}")
            here = folder
        words = command_text(action.argv, own_variables(step, action), one_line=one_line)
        statements.append(wrapped(words, _INDENT))
    return statements


def with_line_break(statements: list[str]) -> list[str]:
    """Prepend the definition of the line break if the statements use it."""
    if any('"$nl"' in statement for statement in statements):
        return [_INDENT + LINE_BREAK, *statements]
    return statements


def exports(variables: Variables, *, one_line: bool) -> list[str]:
    """Return statements that export the variables; the last value of a name is used."""
    return [
        f"{_INDENT}export {variable_name(name)}={quoted(text, one_line=one_line)}"
        for name, text in dict(variables).items()
    ]


def difference_statements(difference: Difference, *, one_line: bool) -> list[str]:
    """Statements that turn the shared variables into a step's own."""
    statements = exports(difference.more, one_line=one_line)
    if difference.without:
        names = [variable_name(name) for name in difference.without]
        statements.insert(0, wrapped(["unset", *names], _INDENT))
    return statements


def file_statements(file: WriteFile, *, one_line: bool) -> list[str]:
    """Return statements that write a file atomically."""
    part = f"{file.path}.part"
    make = ("mkdir", "-p", "--", str(PurePosixPath(file.path).parent))
    finish: list[tuple[str, ...]] = [("mv", "-T", "--", part, file.path)]
    if file.executable:
        finish.insert(0, ("chmod", "+x", "--", part))
    return [
        wrapped(command_text(make, one_line=one_line), _INDENT),
        *_content(file.text, quoted(part, one_line=one_line), one_line=one_line),
        *(wrapped(command_text(argv, one_line=one_line), _INDENT) for argv in finish),
    ]


def _content(text: str, part: str, *, one_line: bool) -> list[str]:
    if not text:
        return [f"{_INDENT}: >{part}"]
    if not one_line and text.endswith("\n"):
        return [_INDENT + heredoc(_checked(text), part)]
    if not one_line:
        return [f"{_INDENT}printf %s {quoted(text)} >{part}"]
    *whole, rest = text.split("\n")
    lines = [f"{_INDENT}printf '%s\\n'", *(quoted(line, one_line=True) for line in whole)]
    statements = [f" \\\n{_INDENT}{_INDENT}".join((*lines, f">{part}"))] if whole else []
    if rest:
        more = ">>" if whole else ">"
        statements.append(f"{_INDENT}printf %s {quoted(rest, one_line=True)} {more}{part}")
    return statements


def _checked(text: str) -> str:
    quoted(text)
    return text


def _in_root(command: Command, step: Step, folder: str) -> str:
    # In some shells, variables before a function call persist; env limits them to one command.
    own = [f"{variable_name(name)}={value}" for name, value in own_variables(step, command)]
    argv = ("env", *own, *command.argv) if own else command.argv
    words = ["in_root", *(quoted(word) for word in (step.root, folder, *argv))]
    return wrapped(words, _INDENT)
