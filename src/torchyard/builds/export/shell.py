"""A step as shell statements: quoted words, variables, folders, files, commands. No I/O.

Words are quoted so that no text can become anything else. Variables that most steps share are
written once; each step then states only how it differs.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from torchyard.builds.export.plain_actions import PlainAction, plain_actions
from torchyard.builds.plan import Command, Plan, Step, Variables, WriteFile
from torchyard.errors import UsageError

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


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How a step's variables differ from those that most steps have."""

    more: Variables
    """Added, or with another value."""
    without: tuple[str, ...]
    """Names that this step does not have."""

    @staticmethod
    def of(step: Step, shared: Variables) -> Difference:
        """Of the step's variables from the shared ones."""
        own = dict(step.variables)
        usual = dict(shared)
        return Difference(
            more=tuple(pair for pair in own.items() if usual.get(pair[0]) != pair[1]),
            without=tuple(name for name in usual if name not in own),
        )

    def beyond(self, other: Difference) -> Variables | None:
        """What this one has more than the other; None where it does not hold all of the other."""
        if self.without != other.without or not set(other.more) <= set(self.more):
            return None
        return tuple(pair for pair in self.more if pair not in other.more)


def shared_by_most(steps: Sequence[Step]) -> Variables:
    """Variables that more than half of the steps have with the same value, in the first's order."""
    pairs = Counter(pair for step in steps for pair in dict(step.variables).items())
    return tuple(pair for pair, count in pairs.items() if 2 * count > len(steps))


def distinct_differences(steps: Sequence[Step]) -> dict[Difference, tuple[str, ...]]:
    """Every difference from the shared variables -> names of the steps that have it."""
    shared = shared_by_most(steps)
    found: dict[Difference, tuple[str, ...]] = {}
    for step in steps:
        difference = Difference.of(step, shared)
        if difference.more or difference.without:
            found[difference] = (*found.get(difference, ()), step.name)
    return found


def own_variables(step: Step, command: Command) -> Variables:
    """Variables of a command that its step does not have already."""
    usual = dict(step.variables)
    return tuple(pair for pair in command.variables if usual.get(pair[0]) != pair[1])


JOB_VARIABLES: Final = ("MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL")
"""Both are needed: some projects read the first, CMake, make and SCons steps the second."""

_INDENT: Final = "    "


def step_statements(
    plan: Plan, step: Step, *, one_line: bool, more: tuple[PlainAction, ...] = ()
) -> list[str]:
    """Everything the step does; `more` is done after it."""
    actions = [plain for action in step.actions for plain in plain_actions(plan, action)]
    statements: list[str] = []
    here = ""
    for action in (*actions, *more):
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
    """The statements of one shell, behind the one that defines a line break where they use it."""
    if any('"$nl"' in statement for statement in statements):
        return [_INDENT + LINE_BREAK, *statements]
    return statements


def exports(variables: Variables, *, one_line: bool) -> list[str]:
    """Statements that export the variables; of a name that is there twice the last one counts."""
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
    """Statements that write a file, whole or not at all."""
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
    # Variables before a function would stay set after it in some shells; env sets them for one.
    own = [f"{variable_name(name)}={value}" for name, value in own_variables(step, command)]
    argv = ("env", *own, *command.argv) if own else command.argv
    words = ["in_root", *(quoted(word) for word in (step.root, folder, *argv))]
    return wrapped(words, _INDENT)
