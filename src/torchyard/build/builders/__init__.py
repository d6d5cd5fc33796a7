"""How a prepared tree becomes libraries or a wheel: one module per build system.

Each module has `steps(site: Site) -> tuple[Step, ...]` and makes steps only; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from torchyard.build.builders import cmake, make, python_project, scons, torchbench
from torchyard.build.builders.site import Site
from torchyard.core.build_plan import Step
from torchyard.core.recipe import BuilderKind

__all__ = ["BUILDERS", "Site"]


BUILDERS: Final[Mapping[BuilderKind, Callable[[Site], tuple[Step, ...]]]] = {
    "cmake": cmake.steps,
    "python": python_project.steps,
    "scons": scons.steps,
    "make": make.steps,
    "torchbench": torchbench.steps,
    "none": python_project.requirement_steps,
}
