"""What a builder knows of the component it builds, and how it makes a step. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchyard.core.build_plan import Action, Component, Step
from torchyard.core.recipe import Recipe, Scalar

__all__ = ["Site", "as_cmake", "as_variable"]


@dataclass(frozen=True, kw_only=True)
class Site:
    """One component at its place in the plan."""

    component: Component
    needs: tuple[str, ...]
    """Steps that come before the component's first build step."""
    variables: tuple[tuple[str, str], ...]
    root: str
    dist: Path
    """An own folder for the component's wheel."""
    front_end: str = ""
    inputs: tuple[tuple[str, str], ...] = ()

    @property
    def recipe(self) -> Recipe:
        """The component's recipe, with all placeholders filled in."""
        return self.component.recipe

    def step(
        self,
        what: str,
        title: str,
        actions: tuple[Action, ...],
        *,
        needs: tuple[str, ...] | None = None,
        variables: tuple[tuple[str, str], ...] = (),
        compiles: bool = False,
        network: bool = False,
        creates: tuple[str, ...] = (),
    ) -> Step:
        """A step of this component, in its root and with its variables."""
        return Step(
            name=f"{self.component.name}/{what}",
            component=self.component.name,
            title=title,
            actions=actions,
            needs=self.needs if needs is None else needs,
            variables=(*self.variables, *variables),
            network=network,
            root=self.root,
            compiles=compiles,
            creates=creates,
            inputs=self.inputs,
        )


def as_cmake(value: Scalar) -> str:
    """An option's value as CMake reads it."""
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return str(value)


def as_variable(value: Scalar) -> str:
    """An option's value as a variable: 1 and 0 are understood by setup.py and CMake alike."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)
