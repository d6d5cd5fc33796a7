"""Plans as shell statements, for all export formats. No I/O.

`plain_actions` converts downloads, apt and checks, which only Torchyard performs, to commands and
files. Other features of the runner (sandbox, meter, checks of options and libraries) cannot be
exported; `without_own_steps` removes the steps that only Torchyard needs. All words are quoted.
Variables that most steps share are written once; each step then sets only the differences.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Final

from torchyard.builds.plan import (
    Action,
    AptSources,
    Command,
    Component,
    Download,
    Plan,
    SdistDownload,
    Step,
    Variables,
    Verify,
    WriteFile,
)
from torchyard.builds.sources.fetch_plan import local_path
from torchyard.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """One file of an export; the first one is the main file."""

    name: str
    """Relative path, such as `.devcontainer/Dockerfile`."""
    text: str
    executable: bool = False


@dataclass(frozen=True, kw_only=True)
class ExportFacts:
    """Information that an export needs in addition to the plan."""

    home: str
    """Home directory of Torchyard (absolute), which contains fetched sources and downloads."""
    done: frozenset[str] = frozenset()
    """Names of the steps that are done."""
    base_image: str = ""
    """Base image; empty to choose one that matches the environment of the plan."""
    conda_program: str = ""
    """Path of the conda program inside `base_image`; empty to install it."""
    image_folder: str = "/opt/torchyard"
    """Folder of builds inside an image."""

    @property
    def sources(self) -> str:
        """Folder of fetched sources on this machine."""
        return str(PurePosixPath(self.home, "sources"))

    @property
    def downloads(self) -> str:
        """Folder of archives and apt state on this machine."""
        return str(PurePosixPath(self.home, "downloads"))


Export = Callable[[Plan, ExportFacts], tuple[ExportedFile, ...]]
"""An export format: returns the files of a plan, the main file first."""


PlainAction = Command | WriteFile

_CHECK_SHA256: Final = """printf '%s  %s\\n' "$1" "$2" | sha256sum -c -"""
_GLOB: Final = re.compile(r"[*?\[]")
# `*` of find also matches `/`, so `**` works, but may match slightly more.
_FIND: Final = """cd "$1" && [ -n "$(find . -path "./$2" -print -quit)" ]"""
_TAKE_ONLY_FILE: Final = """set -- "$1" "$2" "$1"/*
if [ $# -ne 3 ]; then echo "pip left more than one file in $1" >&2; exit 1; fi
mv -T -- "$3" "$2" && rmdir -- "$1\""""
_FREEZE: Final = """"$1" -m pip freeze --all >"$2.part" && mv -T -- "$2.part" "$2\""""


def plain_actions(plan: Plan, action: Action) -> tuple[PlainAction, ...]:
    """Return commands and files that are equivalent to an action."""
    if isinstance(action, Command | WriteFile):
        return (action,)
    if isinstance(action, Download):
        return _download(action)
    if isinstance(action, SdistDownload):
        return _sdist(action, _python_for_sdist(plan, action.path))
    if isinstance(action, AptSources):
        return _apt(action)
    return verify_actions(plan, action)


def freeze_command(plan: Plan, path: str) -> Command | None:
    """Return a command that lists all Python packages; None if the plan has no Python."""
    python = next((part.python for part in plan.components if part.python), "")
    if not python:
        return None
    return Command(argv=("sh", "-c", _FREEZE, "freeze", python, path))


def verify_actions(plan: Plan, action: Verify) -> tuple[PlainAction, ...]:
    """Return the checks that need no Torchyard, run in an empty folder."""
    argvs = check_commands(plan.component(action.component))
    folder = f"{plan.folder}/check"
    make = (("rm", "-rf", "--", folder), ("mkdir", "-p", "--", folder)) if argvs else ()
    return (
        *(Command(argv=argv) for argv in make),
        *(Command(argv=argv, folder=folder) for argv in argvs),
    )


def check_commands(
    component: Component, *, with_device: bool = False
) -> tuple[tuple[str, ...], ...]:
    """Return commands that check files, import and smoke tests, to be run in an empty folder.

    Smoke tests that need a device are included `with_device`.
    """
    table = component.recipe.verify
    argvs = [_file_check(component.prefix, name) for name in table.files]
    snippets = [f"import {table.import_name}"] if table.import_name else []
    snippets += [test.python.strip("\n") for test in table.smoke if with_device or not test.device]
    if not component.python:
        return tuple(argvs)
    # -I: nothing from the working folder, PYTHONPATH or user packages can be imported.
    return (*argvs, *((component.python, "-I", "-c", text) for text in snippets))


def _file_check(prefix: str, pattern: str) -> tuple[str, ...]:
    if not _GLOB.search(pattern):
        return ("test", "-e", str(PurePosixPath(prefix, pattern)))
    parts = PurePosixPath(pattern).parts
    plain = [*takewhile(lambda part: not _GLOB.search(part), parts)]
    folder = PurePosixPath(prefix, *plain)
    return ("sh", "-c", _FIND, "find", str(folder), "/".join(parts[len(plain) :]))


def _download(action: Download) -> tuple[PlainAction, ...]:
    path = PurePosixPath(action.path)
    part = f"{path.name}.part"
    local = local_path(action.url)
    fetch: tuple[str, ...]
    if local is None:
        fetch = ("curl", "--fail", "--location", "--retry", "3", "--output", part, action.url)
    else:
        fetch = ("cp", "--", str(local), part)
    folder = str(path.parent)
    return (
        Command(argv=("mkdir", "-p", "--", folder), inside_root=False),
        Command(argv=fetch, folder=folder, inside_root=False),
        _check_sha256(action.sha256, part, folder),
        Command(argv=("mv", "-T", "--", part, path.name), folder=folder, inside_root=False),
    )


def _sdist(action: SdistDownload, python: str) -> tuple[PlainAction, ...]:
    path = PurePosixPath(action.path)
    folder, arrived = str(path.parent), f"{path.name}.arrived"
    # For this package only: `:all:` would also apply to its build requirements.
    pip = (python, "-m", "pip", "download", "--no-deps", "--no-binary", action.name)
    actions = [
        Command(argv=("rm", "-rf", "--", arrived), folder=folder, inside_root=False),
        Command(
            argv=(*pip, "--dest", arrived, "--", f"{action.name}=={action.version}"), folder=folder
        ),
        Command(
            argv=("sh", "-c", _TAKE_ONLY_FILE, "take", arrived, path.name),
            folder=folder,
            inside_root=False,
        ),
    ]
    if action.sha256:
        actions.append(_check_sha256(action.sha256, path.name, folder))
    return tuple(actions)


def _python_for_sdist(plan: Plan, path: str) -> str:
    """Return the interpreter of the component of an sdist, whose environment exists already.

    An interpreter in a root folder does not run on the machine, where sources are fetched.
    """
    if any(step.root for step in plan.steps):
        return "python3"
    owners = [
        part for part in plan.components if path.startswith((f"{part.source}/", f"{part.source}."))
    ]
    return next((part.python for part in owners if part.python), "python3")


def _apt(action: AptSources) -> tuple[PlainAction, ...]:
    script = f"{action.folder}/write-apt-sources.sh"
    text = resources.files(__package__).joinpath("apt_sources.sh").read_text(encoding="utf-8")
    kinds = "deb deb-src" if action.sources else "deb"
    return (
        WriteFile(path=script, text=text),
        Command(argv=("sh", script, action.folder, action.suite, kinds), inside_root=False),
    )


def _check_sha256(sha256: str, name: str, folder: str) -> Command:
    # Without the folder: sha256sum interprets backslashes in a path as escapes.
    argv = ("sh", "-c", _CHECK_SHA256, "check", sha256, name)
    return Command(argv=argv, folder=folder, inside_root=False)


def without_own_steps(plan: Plan) -> Plan:
    """Remove steps that do not affect the result (the meter) or that only Torchyard can run."""
    dropped = {
        step.name: step.needs
        for step in plan.steps
        if not step.counts or not any(plain_actions(plan, action) for action in step.actions)
    }
    return replace(
        plan,
        steps=tuple(
            replace(step, needs=_needs(step.needs, dropped))
            for step in plan.steps
            if step.name not in dropped
        ),
    )


def _needs(needs: tuple[str, ...], dropped: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Replace dropped steps by the steps that they need."""
    resolved: list[str] = []
    for name in needs:
        resolved += _needs(dropped[name], dropped) if name in dropped else (name,)
    return tuple(dict.fromkeys(resolved))


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
