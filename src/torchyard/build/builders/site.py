"""What a builder knows of the component it builds, and how it makes a step. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchyard.core.build_plan import Action, Component, Step
from torchyard.core.recipe import Recipe, Scalar
from torchyard.errors import UsageError

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
        if compiles:
            variables = (*variables, *options_variable(self.recipe.compile_options))
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


def options_variable(options: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """The variable by which the meter knows further options of single files; none without them."""
    for pattern, words in options.items():
        if not pattern or set(pattern + words) & set("\t\n\r\0"):
            raise UsageError(
                f"compile-options: {pattern!r} = {words!r} holds a tab or a new line, or no name",
                hint='write "NAME*.cpp" = "-O1"',
            )
    lines = "".join(f"{pattern}\t{words}\n" for pattern, words in options.items())
    return (("TORCHYARD_METER_OPTIONS", lines),) if lines else ()


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
