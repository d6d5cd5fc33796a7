"""Small plans for tests: real commands, real folders."""

from __future__ import annotations

from pathlib import Path

from torchyard.builds.plan import Action, Command, Component, Plan, Step
from torchyard.builds.recipe import Recipe

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def shell(text: str) -> Command:
    """A command of the system's shell."""
    return Command(argv=("sh", "-c", text))


def step(
    name: str,
    *actions: Action,
    needs: tuple[str, ...] = (),
    creates: tuple[str, ...] = (),
    network: bool = False,
) -> Step:
    """A step of the one component."""
    return Step(
        name=f"part/{name}",
        component="part",
        title=name,
        actions=actions,
        needs=tuple(f"part/{need}" for need in needs),
        variables=(("PATH", PATH),),
        creates=creates,
        network=network,
    )


def plan_of(folder: Path, *steps: Step) -> Plan:
    """A plan with one component."""
    component = Component(
        name="part",
        recipe=Recipe(name="part"),
        source=str(folder / "source"),
        tree=str(folder / "tree"),
        prefix=str(folder / "prefix"),
        wheels=str(folder / "wheels"),
        python="",
    )
    return Plan(
        name="plan",
        folder=str(folder),
        components=(component,),
        steps=steps,
        jobs=1,
        jobs_why="said by the test",
    )
