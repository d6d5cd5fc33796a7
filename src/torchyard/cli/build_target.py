"""Targets from options: interpreters, and finished builds by the name `build:NAME`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torchyard.builds import BUILD_PREFIX

if TYPE_CHECKING:
    from torchyard.core.study import Target


def with_build_folder(text: str) -> str:
    """Replace the build in `[NAME=]build:BUILD` by its interpreter; return other texts unchanged."""
    name, equals, python = text.rpartition("=")
    if not python.startswith(BUILD_PREFIX):
        return text
    from torchyard.builds.build_folders import BuildsDirectory
    from torchyard.builds.record import target_of_build

    target = target_of_build(python.removeprefix(BUILD_PREFIX), BuildsDirectory.default())
    return f"{name}{equals}{target.python}"


def target_of_option(text: str | None) -> Target:
    """Return the target that `--target` names; by default the interpreter that runs Torchyard."""
    from torchyard.core.variant_parts import parse_target

    return parse_target(
        with_build_folder(text or sys.executable),
        folder=Path.cwd(),
        where="--target",
        default_name="target",
    )


def target_or_here(text: str | None) -> Target:
    """Return the target that `--target` names; by default this interpreter, called `here`."""
    from torchyard.core.study import Target

    return target_of_option(text) if text else Target(name="here", python=sys.executable)
