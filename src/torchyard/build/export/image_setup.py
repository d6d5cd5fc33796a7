"""Statements that every image needs beside the steps: packages before them, checks after. No I/O."""

from __future__ import annotations

import shlex
from typing import Final

from torchyard.build.export.image import Image
from torchyard.build.export.image_base import CONDA_INSTALLERS
from torchyard.build.export.plain_actions import freeze_command
from torchyard.build.export.shell_step import (
    JOB_VARIABLES,
    difference_statements,
    step_statements,
    with_line_break,
)
from torchyard.build.export.shell_words import command_text, wrapped
from torchyard.build.export.variables import Difference
from torchyard.core.build_plan import Step, WriteFile

__all__ = [
    "check_file",
    "check_statements",
    "conda_statements",
    "freeze_statements",
    "input_lines",
    "one_step",
    "package_statements",
    "source_list_statements",
]

_INDENT: Final = "    "


def package_statements(packages: tuple[str, ...]) -> list[str]:
    """Install packages of the system, and leave no index behind."""
    install = ("apt-get", "install", "--yes", "--no-install-recommends", "--", *packages)
    words = command_text(install, (("DEBIAN_FRONTEND", "noninteractive"),))
    return [
        f"{_INDENT}apt-get update",
        wrapped(words, _INDENT),
        f"{_INDENT}rm -rf /var/lib/apt/lists/*",
    ]


def source_list_statements() -> list[str]:
    """Let apt list source packages, in both kinds of its files; build dependencies need them."""
    return [
        (
            f"{_INDENT}for file in /etc/apt/sources.list.d/*.sources; do"
            ' [ ! -f "$file" ] || sed -i \'s/^Types: deb$/Types: deb deb-src/\' "$file"; done'
        ),
        (
            f"{_INDENT}[ ! -s /etc/apt/sources.list ] || sed -n 's/^deb /deb-src /p'"
            " /etc/apt/sources.list >/etc/apt/sources.list.d/source-packages.list"
        ),
    ]


def conda_statements(image: Image) -> list[str]:
    """Install the program that makes the conda environment."""
    return [_INDENT + text for text in CONDA_INSTALLERS[image.conda]]


def one_step(image: Image, step: Step, *, jobs: str) -> list[str]:
    """Everything one step does, where the shared variables are set; `jobs` is how many at once."""
    difference = Difference.of(step, image.shared)
    statements = difference_statements(difference, one_line=True)
    if step.compiles:
        values = " ".join(f'{name}="{jobs}"' for name in JOB_VARIABLES)
        statements.append(f"{_INDENT}export {values}")
    return with_line_break(statements + step_statements(image.plan, step, one_line=True))


def freeze_statements(image: Image) -> list[str]:
    """Write down every Python package; nothing where there is no Python."""
    command = freeze_command(image.plan, image.freeze_file)
    if command is None:
        return []
    step = Step(name="freeze", component="", title="", actions=(command,))
    return step_statements(image.plan, step, one_line=True)


def check_statements(image: Image, *, one_line: bool) -> list[str]:
    """Import and smoke tests in the finished image, from an empty folder."""
    if not image.checks:
        return []
    checks = [wrapped(command_text(argv, one_line=one_line), _INDENT) for argv in image.checks]
    statements = [f'{_INDENT}cd "$(mktemp -d)"', *checks]
    return with_line_break(statements) if one_line else statements


def check_file(image: Image) -> WriteFile:
    """The checks as a file of the image, for a machine that has the GPU."""
    lines = ["#!/bin/sh", "# Checks this build where there is a GPU.", "set -eu"]
    checks = [text.removeprefix(_INDENT) for text in check_statements(image, one_line=False)]
    return WriteFile(
        path=f"{image.plan.folder}/check.sh",
        text="\n".join((*lines, *checks)) + "\n",
        executable=True,
    )


def input_lines(image: Image) -> list[str]:
    """Commands, for people, that bring this machine's files beside the definition."""
    if not image.inputs:
        return []
    copies = [
        f"  mkdir -p local && cp -aT -- {shlex.quote(item.path)} local/{item.name}"
        for item in image.inputs
    ]
    return ["", "Before building, bring these beside this file:", *copies]
