"""Interpreter names of the form `build:NAME`: the target of a finished build."""

from __future__ import annotations

from torchyard.builds import BUILD_PREFIX

__all__ = ["with_build_folder"]


def with_build_folder(text: str) -> str:
    """Replace the build in `[NAME=]build:BUILD` by its interpreter; return other texts unchanged."""
    name, equals, python = text.rpartition("=")
    if not python.startswith(BUILD_PREFIX):
        return text
    from torchyard.builds.build_folders import BuildsDirectory
    from torchyard.builds.record import target_of_build

    target = target_of_build(python.removeprefix(BUILD_PREFIX), BuildsDirectory.default())
    return f"{name}{equals}{target.python}"
