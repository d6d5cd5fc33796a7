"""From resolved recipes to a plan: which steps, in which order, with which variables. Runs nothing.

Asks the families for their part (sources, environments, builders) and joins them. What it decides
for the user it writes into the plan's notes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from torchyard.build.builders import BUILDERS, Site
from torchyard.build.builders.torchbench import model_of
from torchyard.build.component_steps import fetch_step, tree_step, verify_step
from torchyard.build.components import BuildRequest, ResolvedBuild, resolve
from torchyard.build.coupling import release_facts
from torchyard.build.environments import EnvironmentPlan, plan_environment
from torchyard.build.environments.base_variables import joined_path
from torchyard.build.layout import BuildFolder, YardHome
from torchyard.build.meter import meter_actions
from torchyard.build.placeholders import filled_in
from torchyard.build.sandbox import abilities
from torchyard.core.build_plan import Component, Plan, Step
from torchyard.core.recipe import Recipe

__all__ = ["default_name", "make_plan"]

_METER: Final = "environment/meter"


@dataclass(frozen=True, kw_only=True)
class _Place:
    """What all components of a plan share."""

    home: YardHome
    folder: BuildFolder
    environment: EnvironmentPlan
    machine: str


def default_name(build: ResolvedBuild) -> str:
    """What a build is called when the user does not say: recipe, version, variant, and model."""
    recipe = build.recipe
    model = model_of(recipe.options) if recipe.builder == "torchbench" else ""
    parts = (recipe.name, recipe.version, recipe.variant, model)
    return "-".join(part for part in parts if part)


def make_plan(
    request: BuildRequest,
    *,
    home: YardHome,
    name: str = "",
    resolved: ResolvedBuild | None = None,
    environ: Mapping[str, str] | None = None,
) -> Plan:
    """The whole plan; looks at recipe files and tools, and changes nothing."""
    build = resolved or resolve(request)
    name = name or default_name(build)
    folder = home.build(name)
    top = filled_in(
        replace(build.recipe, components=()),
        _names(build.recipe, home, folder, request.machine, build.components),
        where=build.recipe.name,
        only="environment",
    )
    environment = plan_environment(
        top.environment,
        folder=folder.folder,
        packages=_packages(build),
        where=f"{build.recipe.name}: environment",
        environ=os.environ if environ is None else environ,
    )
    place = _Place(home=home, folder=folder, environment=environment, machine=request.machine)
    meter = Step(
        name=_METER,
        component="environment",
        title="compile the meter that watches compilers",
        actions=meter_actions(folder.meter),
        needs=environment.last_step,
        variables=environment.variables,
        root=environment.root,
        creates=(str(folder.meter / "meter"),),
        counts=False,
    )
    steps: list[Step] = [*environment.steps, meter]
    components: dict[str, Component] = {}
    last: dict[str, str] = {}
    for recipe in build.components:
        component = _component(recipe, place, build.components)
        made = _component_steps(component, place, tuple(last[need] for need in recipe.needs))
        components[recipe.name] = component
        steps += made
        last[recipe.name] = made[-1].name
    return Plan(
        name=name,
        folder=str(folder.folder),
        components=tuple(components.values()),
        steps=tuple(steps),
        jobs=0,
        jobs_why="",
        notes=(*environment.notes, *_network_note()),
        missing=environment.missing,
    )


def _network_note() -> tuple[str, ...]:
    able = abilities()
    if able.can_unshare_network:
        return ()
    return (
        f"steps after fetching can reach the network: it cannot be cut, {able.why_not} ({able.hint})",
    )


def _packages(build: ResolvedBuild) -> tuple[str, ...]:
    """Requirements of all components, each once: one environment serves them all."""
    wanted = [
        *build.environment.venv.packages,
        *(item for recipe in build.components for item in recipe.environment.venv.packages),
    ]
    for recipe in build.components:
        if recipe.builder == "python" and recipe.known_release:
            facts = release_facts(recipe.known_release, recipe.version)
            wanted += facts.build_requires
        if _front_end(recipe) == "pep517" and recipe.python.install == "wheel":
            wanted.append("build")
    return tuple(dict.fromkeys(wanted))


def _names(
    recipe: Recipe,
    home: YardHome,
    folder: BuildFolder,
    machine: str,
    components: Iterable[Recipe],
) -> dict[str, str]:
    """What {placeholders} of a recipe stand for; all paths follow from the build's folder."""
    names = {
        "folder": str(folder.folder),
        "prefix": str(folder.prefix),
        "wheels": str(folder.wheels),
        "env": str(folder.folder / "env"),
        "root": str(folder.folder / "root"),
        "machine": machine,
        "name": recipe.name,
        "version": recipe.version,
        "release": ".".join(recipe.version.split(".")[:2]),
        "variant": recipe.variant,
        "source": str(home.source(_with_source(recipe))),
        "tree": str(folder.tree(recipe.name)),
    }
    for part in components:
        if part.name in recipe.needs:
            names |= {
                f"needs.{part.name}.tree": str(folder.tree(part.name)),
                f"needs.{part.name}.prefix": str(folder.prefix),
                f"needs.{part.name}.version": part.version,
            }
    return names


def _with_source(recipe: Recipe) -> Recipe:
    """The recipe with its source said in full: where it is depends on nothing else."""
    known = {"version": recipe.version, "release": ".".join(recipe.version.split(".")[:2])}
    versioned = filled_in(recipe, known, where=recipe.name, only="source")
    source = versioned.source
    if source.folder is None:
        return versioned
    # A path in a recipe file starts at the file, wherever the user stands.
    path = str(Path(recipe.folder, Path(source.folder.path).expanduser()))
    return replace(versioned, source=replace(source, folder=replace(source.folder, path=path)))


def _component(recipe: Recipe, place: _Place, components: Iterable[Recipe]) -> Component:
    """The component with its paths, and its recipe's placeholders filled in."""
    names = _names(recipe, place.home, place.folder, place.machine, components)
    names["python"] = place.environment.python
    versioned = _with_source(recipe)
    return Component(
        name=recipe.name,
        recipe=filled_in(versioned, names, where=recipe.name),
        source=names["source"],
        tree=names["tree"],
        prefix=names["prefix"],
        wheels=names["wheels"],
        python=names["python"],
        release=recipe.version,
        needs=recipe.needs,
    )


def _component_steps(
    component: Component, place: _Place, before: tuple[str, ...]
) -> tuple[Step, ...]:
    environment = place.environment
    fetch = fetch_step(component, place.home, environment.variables)
    variables = _variables(component, environment)
    tree = tree_step(
        component,
        needs=(fetch.name, *environment.last_step),
        variables=variables,
        root=environment.root,
    )
    site = Site(
        component=component,
        needs=(tree.name, _METER, *before),
        variables=variables,
        root=environment.root,
        dist=place.folder.dist(component.name),
        front_end=_front_end(component.recipe),
    )
    built = BUILDERS[component.recipe.builder](site)
    last = (built or (tree,))[-1].name
    verify = verify_step(
        component,
        needs=(last,),
        variables=variables,
        root=environment.root,
        report=place.folder.report(component.name),
    )
    return (fetch, tree, *built, verify)


def _variables(component: Component, environment: EnvironmentPlan) -> tuple[tuple[str, str], ...]:
    """The environment's variables, the component's own on top, and what it needs within sight."""
    values = dict(environment.variables)
    values.update(component.recipe.environment.variables)
    if component.needs:
        prefix = component.prefix
        for name, folder in (
            ("CMAKE_PREFIX_PATH", prefix),
            ("CPATH", f"{prefix}/include"),
            ("LIBRARY_PATH", f"{prefix}/lib"),
            ("LD_LIBRARY_PATH", f"{prefix}/lib"),
        ):
            values[name] = joined_path(folder, values.get(name, ""))
    return tuple(values.items())


def _front_end(recipe: Recipe) -> str:
    """Which front end builds the wheel: said by the recipe, or by the release."""
    if recipe.builder != "python":
        return ""
    if recipe.python.front_end != "auto":
        return recipe.python.front_end
    if not recipe.known_release:
        return "pep517"
    era = release_facts(recipe.known_release, recipe.version).front_end
    return "setup.py" if era == "setup.py" else "pep517"
