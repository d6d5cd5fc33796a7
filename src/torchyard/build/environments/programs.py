"""Finds programs and interpreters on this machine. Starts an interpreter only to ask what it is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from torchyard.build.environments.base_variables import SYSTEM_PATH
from torchyard.errors import UsageError

__all__ = ["Interpreter", "find_interpreter", "find_program"]

_VERSION: Final = re.compile(r"3\.\d+")
_ANSWER_LIMIT_S: Final = 20.0
_QUESTION: Final = """
import importlib.util, json, sys
print(json.dumps([".".join(map(str, sys.version_info[:3])), sys.implementation.name,
                  importlib.util.find_spec("ensurepip") is not None]))
"""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python that an environment is made with."""

    path: str
    """Absolute where it was found; otherwise the bare name of what was asked for."""
    version: str = ""
    """Empty where it was not found."""
    implementation: str = ""
    has_pip: bool = False
    """Whether `python -m venv` can put a pip into the environments it makes."""


def find_program(name: str, environ: Mapping[str, str]) -> str:
    """Absolute path of a program the user or the system has, or nothing.

    The user's PATH counts here although builds do not get it: uv and conda live in home folders.
    """
    found = shutil.which(name, path=os.pathsep.join((environ.get("PATH", ""), SYSTEM_PATH)))
    return str(Path(found).absolute()) if found else ""


def find_interpreter(named: str, environ: Mapping[str, str], *, where: str) -> Interpreter:
    """The interpreter that a recipe names by version or by path; nothing named means the yard's.

    A version that is not here gives an Interpreter without a version: such a plan can be shown. A
    path that is not here is an error, because nothing could make it right.
    """
    if not named:
        return _ask(sys.executable, where)
    if _VERSION.fullmatch(named):
        if named == f"{sys.version_info.major}.{sys.version_info.minor}":
            return _ask(sys.executable, where)
        found = find_program(f"python{named}", environ)
        return _ask(found, where) if found else Interpreter(path=f"python{named}")
    if os.sep not in named:
        raise UsageError(
            f"{where}: {named!r} names no interpreter",
            hint="give a version such as 3.12, or a path such as /usr/bin/python3",
        )
    # Not resolved: the python of a virtual environment is a link, and only its name says which.
    path = Path(named).expanduser().absolute()
    if not os.access(path, os.X_OK) or path.is_dir():
        raise UsageError(
            f"{where}: {path} is not a program that can be started",
            hint="give the path of an interpreter, such as /usr/bin/python3",
        )
    return _ask(str(path), where)


@cache
def _ask(path: str, where: str) -> Interpreter:
    """What the interpreter is; about 30 ms, so once for each in a process."""
    try:
        # -I: neither the folder we are in nor the user's variables have a say in the answer.
        answer = subprocess.run(
            [path, "-I", "-S", "-c", _QUESTION],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_ANSWER_LIMIT_S,
            check=True,
        )
        version, implementation, has_pip = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"{where}: {path} does not answer as a Python",
            why=str(error),
            hint="give the path of an interpreter of Python 3, such as /usr/bin/python3",
        ) from error
    return Interpreter(path=path, version=version, implementation=implementation, has_pip=has_pip)
