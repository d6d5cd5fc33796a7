"""`build:NAME` as the name of an interpreter: the target that a build made."""

from __future__ import annotations

from torchyard.builds import BUILD_PREFIX

__all__ = ["with_build_folder"]


def with_build_folder(text: str) -> str:
    """`[NAME=]build:BUILD` with the build's folder in place of its name; all else as it is."""
    name, equals, python = text.rpartition("=")
    if not python.startswith(BUILD_PREFIX):
        return text
    from torchyard.builds.build_folders import YardHome
    from torchyard.builds.record import target_of_build

    target = target_of_build(python.removeprefix(BUILD_PREFIX), YardHome.default())
    return f"{name}{equals}{target.python}"
