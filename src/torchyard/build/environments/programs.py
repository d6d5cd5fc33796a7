"""Finds programs and interpreters on this machine. Starts interpreters only to ask for a version."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from torchyard.build.environments.base_variables import SYSTEM_PATH

__all__ = ["find_program"]


def find_program(name: str, environ: Mapping[str, str]) -> str:
    """Absolute path of a program the user or the system has, or nothing.

    The user's PATH counts here although builds do not get it: uv and conda live in home folders.
    """
    found = shutil.which(name, path=os.pathsep.join((environ.get("PATH", ""), SYSTEM_PATH)))
    return os.path.abspath(found) if found else ""  # noqa: PTH100 - a link must keep its name
