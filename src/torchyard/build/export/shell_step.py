"""One step as shell statements: folders, files, commands, in the order of its actions. No I/O.

Two ways of writing: with real line breaks inside quotes and here-documents, for scripts; or in one
logical line, for Dockerfiles and Apptainer definitions.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from torchyard.build.export.plain_actions import PlainAction, plain_actions
from torchyard.build.export.shell_words import (
    LINE_BREAK,
    command_text,
    heredoc,
    quoted,
    variable_name,
    wrapped,
)
from torchyard.build.export.variables import Difference, own_variables
from torchyard.core.build_plan import Command, Plan, Step, Variables, WriteFile

__all__ = [
    "JOB_VARIABLES",
    "difference_statements",
    "exports",
    "file_statements",
    "step_statements",
    "with_line_break",
]

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
