"""What a finished build is used through: its interpreter, its activation script, its variables.

`bin/python` in the build's folder starts the interpreter with what it needs, in its root folder
where there is one, so that the folder can be named as a target like any virtual environment.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from torchyard.build.activation import activation_script, split_variables
from torchyard.build.environments.base_variables import joined_path
from torchyard.build.layout import BuildFolder
from torchyard.build.sandbox import root_python_script
from torchyard.core.build_plan import Plan, Step
from torchyard.results.durable import replace_file

__all__ = ["runtime_variables", "write_runtime_files"]

_FOR_RUNNING = ("LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables of a build's steps that its programs need when they run, too."""


def runtime_variables(plan: Plan) -> dict[str, str]:
    """The loader's and Python's search paths of the last component, and the prefix's libraries."""
    values = _used_variables(plan)
    return {name: values[name] for name in _FOR_RUNNING if values.get(name)}


def _used_variables(plan: Plan) -> dict[str, str]:
    """What a shell needs to use the build: the last step's variables, with the prefix in sight."""
    values = dict(_last_step(plan).variables)
    if any(part.recipe.builder in ("cmake", "make") for part in plan.components):
        prefix = plan.components[0].prefix
        for name, folder in (
            ("PATH", f"{prefix}/bin"),
            ("CMAKE_PREFIX_PATH", prefix),
            ("CPATH", f"{prefix}/include"),
            ("LIBRARY_PATH", f"{prefix}/lib"),
            ("LD_LIBRARY_PATH", f"{prefix}/lib"),
        ):
            values[name] = joined_path(folder, values.get(name, ""))
    return values


def write_runtime_files(plan: Plan, folder: BuildFolder) -> Path | None:
    """Write `activate` and `bin/python`; returns the interpreter, None where the plan has none."""
    step = _last_step(plan)
    python = plan.components[-1].python
    script = folder.folder / "bin" / "python"
    enter = shlex.quote(str(script)) if step.root else ""
    plain, prepend = split_variables(tuple(_used_variables(plan).items()))
    replace_file(
        folder.folder / "activate",
        activation_script(folder.folder, plain, prepend, root=step.root, enter=enter),
    )
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


def _last_step(plan: Plan) -> Step:
    return plan.steps[-1]
