"""Files for using a finished build: interpreter, activation script and variables.

`bin/python` in the build folder starts the interpreter with the variables it needs, in its root
folder where there is one, so that the folder can be named as a target like any virtual environment.
The activation script works in sh, dash, bash, ksh and zsh. Sourcing it twice changes nothing: the
active build is stored in the environment itself, so that a child shell knows it, too.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.environments.model import SYSTEM_PATH, join_paths
from torchyard.builds.plan import Plan, Variables
from torchyard.builds.sandbox import root_python_script
from torchyard.errors import UsageError
from torchyard.files.safe_writing import replace_file

SEARCH_PATHS: Final = (
    "PATH",
    "CMAKE_PREFIX_PATH",
    "CPATH",
    "LIBRARY_PATH",
    "LD_LIBRARY_PATH",
    "PKG_CONFIG_PATH",
    "PYTHONPATH",
)
"""Variables with a list of folders: those of the build are prepended to the user's."""

_BUILD_ONLY: Final = ("HOME", "LANG", "LC_ALL", "PIP_CONSTRAINT")
"""Variables that make a build reproducible; the user's shell keeps its own values."""
_RESERVED_NAMES: Final = ("TORCHYARD_WAS_", "TORCHYARD_PUT_", "TORCHYARD_ACTIVE", "TORCHYARD_NAMES")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_HEAD: Final = """\
# Source this file; do not run it:   . {file}
# Undo it with:                      torchyard_deactivate
# Sourcing it again changes nothing.
"""

# POSIX features only: no arrays, no `local`, no splitting of unquoted words (zsh does not split
# them). All expansions are in braces, because zsh reads "$a:h" as a modifier. The
# state is exported as TORCHYARD_WAS_NAME: `e` and the value if NAME was exported, `s` and the value
# if it was a variable of the shell only, and no such variable if NAME was unset.
_FUNCTIONS: Final = Path(__file__).with_name("activate.sh").read_text(encoding="utf-8")


def split_variables(variables: Variables) -> tuple[Variables, Mapping[str, tuple[str, ...]]]:
    """Split the variables of a step into plain ones and folders to prepend.

    System folders are left out of PATH: the user's PATH contains them already.
    """
    plain = tuple(
        pair for pair in variables if pair[0] not in SEARCH_PATHS and pair[0] not in _BUILD_ONLY
    )
    system = SYSTEM_PATH.split(":")
    values = dict(variables)
    prepend = {}
    for name in SEARCH_PATHS:
        folders = [folder for folder in join_paths(values.get(name, "")).split(":") if folder]
        if name == "PATH":
            folders = [folder for folder in folders if folder not in system]
        if folders:
            prepend[name] = tuple(folders)
    return plain, prepend


def activation_script(
    plan_folder: Path | str,
    variables: Variables,
    prepend: Mapping[str, Sequence[str]],
    *,
    root: str = "",
    enter: str = "",
) -> str:
    """Return the text of the `activate` script.

    `prepend` maps a variable to the folders to prepend, in order. With a `root`, the script fails
    outside of it and prints the command that enters it (`enter`).
    """
    calls = [
        f"_torchyard_set {_checked(name)} {shlex.quote(text)}"
        for name, text in dict(variables).items()
        if name not in prepend
    ]
    for name, folders in prepend.items():
        joined = join_paths(*folders)
        for folder in folders:
            if ":" in folder:
                raise UsageError(
                    f"the folder {folder!r} cannot be part of {name}: its name contains a colon",
                    hint="set TORCHYARD_HOME to another folder and build there",
                )
        if joined:
            calls.append(f"_torchyard_prepend {_checked(name)} {shlex.quote(joined)}")
    body = "\n".join(f"    {call}" for call in calls) or "    :"
    identity = hashlib.sha256(f"{plan_folder}\n{body}".encode()).hexdigest()[:16]
    file = shlex.quote(f"{plan_folder}/activate")
    if "\n" in file:
        raise UsageError(
            f"the folder {str(plan_folder)!r} cannot hold a build",
            why="its name contains a line break",
            hint="set TORCHYARD_HOME to another folder",
        )
    return (
        _HEAD.format(file=file)
        + _root_check(root, enter)
        + _FUNCTIONS
        + f"""
if [ "${{TORCHYARD_ACTIVE-}}" != {identity} ]; then
    torchyard_deactivate
{body}
    export TORCHYARD_ACTIVE={identity}
    hash -r 2>/dev/null || :
fi
"""
    )


def module_file(name: str, variables: Variables, prepend: Mapping[str, Sequence[str]]) -> str:
    """Return a module file in Tcl, which Environment Modules and Lmod load."""
    lines = ["#%Module1.0", f"module-whatis {_tcl(f'Torchyard build {name}')}"]
    lines += [
        f"setenv {_checked(key)} {_tcl(text)}" for key, text in variables if key not in prepend
    ]
    for key, folders in prepend.items():
        # Each command puts its folder first.
        lines += [f"prepend-path {_checked(key)} {_tcl(folder)}" for folder in reversed(folders)]
    return "\n".join(lines) + "\n"


def _tcl(text: str) -> str:
    """Quote a word for Tcl, so that nothing in it is substituted."""
    escaped = re.sub(r'[\\"$\[\]]', r"\\\g<0>", text).replace("\n", "\\n")
    return f'"{escaped}"'


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name) or name.startswith(_RESERVED_NAMES):
        raise UsageError(
            f"{name!r} is not a valid variable name",
            hint="use letters, digits and underscores",
        )
    return name


def _root_check(root: str, enter: str) -> str:
    """Return shell code that fails outside the root, where the programs of the build do not run."""
    if not root:
        return ""
    message = f"torchyard: this build runs inside {root}"
    lines = [f"    printf '%s\\n' {shlex.quote(message)} >&2"]
    if enter:
        lines.append(f"    printf '%s\\n' {shlex.quote('enter it with: ' + enter)} >&2")
    printing = "\n".join(lines)
    return f"\nif [ ! -e /etc/torchyard-root ]; then\n{printing}\n    return 1\nfi\n"


_RUNTIME_VARIABLES = ("LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables of the build steps that the built programs need at run time."""


def runtime_variables(plan: Plan) -> dict[str, str]:
    """Return the search paths of the loader and of Python for the last component."""
    values = _activation_variables(plan)
    return {name: values[name] for name in _RUNTIME_VARIABLES if values.get(name)}


def _activation_variables(plan: Plan) -> dict[str, str]:
    """Return the variables for using the build: those of the last step, plus the prefix."""
    values = dict(plan.steps[-1].variables)
    if any(part.recipe.builder in ("cmake", "make") for part in plan.components):
        prefix = plan.components[0].prefix
        for name, folder in (
            ("PATH", f"{prefix}/bin"),
            ("CMAKE_PREFIX_PATH", prefix),
            ("CPATH", f"{prefix}/include"),
            ("LIBRARY_PATH", f"{prefix}/lib"),
            ("LD_LIBRARY_PATH", f"{prefix}/lib"),
        ):
            values[name] = join_paths(folder, values.get(name, ""))
    return values


def write_runtime_files(plan: Plan, folder: BuildFolder) -> Path | None:
    """Write `activate`, a module file and `bin/python`; return the last, None without interpreter."""
    step = plan.steps[-1]
    python = plan.components[-1].python
    script = folder.folder / "bin" / "python"
    enter = shlex.quote(str(script)) if step.root else ""
    plain, prepend = split_variables(tuple(_activation_variables(plan).items()))
    replace_file(
        folder.folder / "activate",
        activation_script(folder.folder, plain, prepend, root=step.root, enter=enter),
    )
    if not step.root:
        folder.modules.mkdir(exist_ok=True)
        replace_file(folder.modules / plan.name, module_file(plan.name, plain, prepend))
    if not python:
        return None
    script.parent.mkdir(parents=True, exist_ok=True)
    variables = runtime_variables(plan)
    if step.root:
        text = root_python_script(
            root=step.root, python=python, variables=variables, shown=folder.shown_in(step.root)
        )
    else:
        lines = ["#!/bin/sh", f"# The interpreter of the build {plan.name}."]
        lines += [
            f"export {name}={shlex.quote(value)}${{{name}:+:${{{name}}}}}"
            for name, value in variables.items()
        ]
        lines.append(f'exec {shlex.quote(python)} "$@"')
        text = "\n".join(lines) + "\n"
    replace_file(script, text)
    script.chmod(0o755)
    return script
