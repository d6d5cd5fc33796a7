"""Where the checkout of a `torchbench` workload is, and which models a whole suite of them has.

Workers get no `TORCHYARD_` variables of the yard, so the variable that names the checkout is read here
and becomes the parameter `path`: what a run measured is then in its study. Reads folders; loads nothing.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.config.request import WorkloadChoice
from torchyard.errors import UsageError
from torchyard.worker.built import CannotBuild
from torchyard.worker.suites.torchbench_tree import VARIABLE, Tree, find_tree

__all__ = ["SUITE", "models_of", "tree_of", "with_checkout"]

SUITE: Final = "torchbench"
_PATH: Final = "path"


def with_checkout(choice: WorkloadChoice) -> WorkloadChoice:
    """The choice with a full path in its parameters, where one is named here.

    Without one the target must be able to import the package, which only the worker can find out.
    """
    given = dict(choice.parameters)
    named = str(given[_PATH]) if _PATH in given else os.environ.get(VARIABLE, "")
    if not named:
        return choice
    root = tree_of(Path(named), where=choice.where if _PATH in given else VARIABLE).root
    return replace(choice, parameters=tuple({**given, _PATH: root}.items()))


def models_of(choice: WorkloadChoice) -> list[str]:
    """Every model of the checkout; raises UsageError when no checkout is named."""
    path = dict(choice.parameters).get(_PATH)
    if path is None:
        raise UsageError(
            f"{choice.where}: the suite {SUITE!r} has the models of a checkout, and none is named",
            hint=f"set {VARIABLE} to the folder of a checkout of pytorch/benchmark",
        )
    found = [model.name for model in tree_of(Path(str(path)), where=choice.where).models()]
    if not found:
        raise UsageError(
            f"{choice.where}: the checkout {path} has no models",
            hint="is the clone complete? torchbenchmark/models should hold a folder for each",
        )
    return found


def tree_of(path: Path, *, where: str) -> Tree:
    """The checkout in that folder."""
    try:
        return find_tree(str(path.expanduser().absolute()))
    except CannotBuild as refused:
        raise UsageError(
            f"{where}: {str(path)!r} is no checkout of pytorch/benchmark",
            why="it has no torchbenchmark/__init__.py",
            hint="give the folder that the repository was cloned into",
        ) from refused
