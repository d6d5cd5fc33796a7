"""From what a user calls an interpreter to the path that starts it. Looks, never starts it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from torchyard.config.names import check_name
from torchyard.core.variant import Target
from torchyard.errors import UsageError

__all__ = ["find_python", "parse_target"]


def find_python(text: str, *, folder: Path, where: str) -> str:
    """An absolute path from a path, a virtual environment's folder or a command on PATH.

    Symbolic links are kept: the `python` of a virtual environment is a link, and following it
    would leave the environment.
    """
    if not text:
        raise UsageError(f"{where}: no interpreter is named", hint="give the path of a python")
    path = Path(os.path.abspath(folder / Path(text).expanduser()))  # noqa: PTH100
    if path.is_dir():
        inside = path / "bin" / "python"
        if not inside.is_file():
            raise UsageError(
                f"{where}: the folder {text!r} is not a virtual environment",
                why=f"it has no {Path('bin') / 'python'}",
                hint="give the folder of a virtual environment or the path of a python",
            )
        return str(inside)
    if path.is_file():
        if not os.access(path, os.X_OK):
            raise UsageError(
                f"{where}: {text!r} cannot be executed", hint="give the path of a python"
            )
        return str(path)
    on_path = shutil.which(text) if os.sep not in text else None
    if on_path is None:
        raise UsageError(
            f"{where}: there is no interpreter {text!r}",
            why=f"looked for {path}" + ("" if os.sep in text else " and on PATH"),
            hint="give the path of a python or the folder of a virtual environment",
        )
    return on_path


def parse_target(text: str, *, folder: Path, where: str, default_name: str = "") -> Target:
    """A target from `NAME=PYTHON`, or from `PYTHON` alone where a default name is given."""
    name, equals, python = text.partition("=")
    if not equals or (default_name and os.sep in name):
        if not default_name:
            raise UsageError(f"{where}: {text!r} has no name", hint="write NAME=PYTHON")
        name, python = default_name, text
    check_name(name, where=where)
    return Target(name=name, python=find_python(python, folder=folder, where=where))
