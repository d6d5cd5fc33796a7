"""An existing interpreter given by the recipe, or none; installs nothing."""

from __future__ import annotations

from pathlib import Path

from torchyard.builds.environments.base_interpreter import find_interpreter
from torchyard.builds.environments.model import (
    SYSTEM_PATH,
    EnvironmentPlan,
    EnvironmentRequest,
    ordered_variables,
    required_packages,
)
from torchyard.builds.plan import Variables
from torchyard.errors import UsageError


def plan_current(request: EnvironmentRequest) -> EnvironmentPlan:
    """Return a plan without steps, with variables that put the interpreter first."""
    named, packages = request.table.python, required_packages(request)
    if request.table.base:
        raise UsageError(
            f"{request.where}.base: the environment 'current' cannot have a base",
            hint='use = "venv" creates an environment with that base',
        )
    if not named:
        if packages:
            raise UsageError(
                f"{request.where}.python is missing, but the build requires {', '.join(packages)}",
                hint='give environment.python, or use = "venv" to have them installed',
            )
        return EnvironmentPlan(kind="current", python="", variables=ordered_variables(request))
    interpreter = find_interpreter(named, request.environ, where=f"{request.where}.python")
    if not interpreter.version:
        return EnvironmentPlan(
            kind="current",
            python=interpreter.path,
            variables=ordered_variables(request),
            missing=(f"{interpreter.path} (install it, or give another environment.python)",),
        )
    notes = [f"the build uses {interpreter.path} unchanged (Python {interpreter.version})"]
    if packages:
        notes.append(f"not installed into your environment: {', '.join(packages)}")
    return EnvironmentPlan(
        kind="current",
        python=interpreter.path,
        variables=_variables(request, Path(interpreter.path).parent),
        notes=tuple(notes),
    )


def _variables(request: EnvironmentRequest, programs: Path) -> Variables:
    if str(programs) in SYSTEM_PATH.split(":"):
        return ordered_variables(request)
    prefix = str(programs.parent)
    if (programs.parent / "pyvenv.cfg").is_file():
        more: Variables = (("VIRTUAL_ENV", prefix), ("PYTHONNOUSERSITE", "1"))
    elif (programs.parent / "conda-meta").is_dir():
        more = (("CONDA_PREFIX", prefix),)
    else:
        more = ()
    return ordered_variables(request, programs=(str(programs),), prefixes=(prefix,), more=more)
