"""Python packages of an environment: what is installed, by whom, and over which base.

A base is another interpreter whose packages (a torch) the environment sees and never changes.
"""

from __future__ import annotations

from importlib import resources
from typing import Final

from torchyard.build.environments.contract import EnvironmentRequest
from torchyard.core.build_plan import Action, Command, WriteFile

__all__ = ["layer_actions", "pip_installer", "wanted_packages"]

_LAYER_PROGRAM: Final = "layer-packages.py"


def wanted_packages(request: EnvironmentRequest) -> tuple[str, ...]:
    """The recipe's packages and those of all components, each once, in a stable order."""
    return tuple(dict.fromkeys((*request.table.venv.packages, *request.packages)))


def pip_installer(request: EnvironmentRequest, python: str) -> tuple[str, ...]:
    """The pip of that interpreter; with a base, held to the torch that the base has."""
    options = ("--no-input", "--disable-pip-version-check")
    constraint = ("--constraint", _constraints_file(request)) if request.table.base else ()
    return (python, "-m", "pip", "install", *options, *constraint)


def layer_actions(request: EnvironmentRequest, python: str) -> tuple[Action, ...]:
    """Let the environment see the packages of its base, behind its own."""
    base = request.table.base
    if not base:
        return ()
    program = str(request.folder / _LAYER_PROGRAM)
    text = resources.files(__package__).joinpath("layer_packages.py").read_text(encoding="utf-8")
    return (
        WriteFile(path=program, text=text),
        Command(argv=(python, program, base, _constraints_file(request))),
    )


def _constraints_file(request: EnvironmentRequest) -> str:
    return str(request.folder / "base-constraints.txt")
