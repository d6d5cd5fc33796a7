"""Turn resolved recipes into a plan: steps, their order, their variables. Runs nothing.

Combines the actions of sources, environments and builders. The steps that every component has,
whatever builds it (fetch, working copy, verification), are made here. Decisions made for the user
are written into the notes of the plan.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from torchyard.builds.build_folders import BuildFolder, YardHome
from torchyard.builds.builders import BUILDERS, Site, model_of
from torchyard.builds.compatibility import release_facts
from torchyard.builds.environments import EnvironmentPlan, plan_environment
from torchyard.builds.environments.model import joined_path
from torchyard.builds.meter import meter_actions
from torchyard.builds.plan import Action, Command, Component, Plan, Step, Variables, Verify
from torchyard.builds.recipe import Recipe, filled_in
from torchyard.builds.recipe_file import BuildRequest, ResolvedBuild, resolve
from torchyard.builds.sandbox import abilities
from torchyard.builds.sources import fetch_actions
from torchyard.errors import UsageError


def fetch_step(component: Component, home: YardHome, variables: Variables) -> Step:
    """Bring the source to this machine: the only step of a component that may use the network."""
    fetch = fetch_actions(
        component.recipe.source,
        destination=Path(component.source),
        downloads=home.downloads,
        where=f"{component.name}: source",
    )
    # Programs of the environment are not there yet, and fetching needs only the system's.
    kept = tuple((name, value) for name, value in variables if name in ("HOME", "LANG", "LC_ALL"))
    return Step(
        name=f"{component.name}/fetch",
        component=component.name,
        title=f"fetch {fetch.summary}",
        actions=fetch.actions,
        variables=(("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), *kept),
        network=True,
        creates=(component.source,),
        kept=False,
        inputs=fetch.inputs,
    )


def tree_step(
    component: Component, *, needs: tuple[str, ...], variables: Variables, root: str
) -> Step:
    """A working copy of the source, patched and prepared.

    Builds write into the source tree (PyTorch's code generation does), so no two builds share one.
    The copy appears under its name only when patches and preparation went well.
    """
    part = f"{component.tree}.part"
    copy, inputs = copy_actions(component, part)
    actions = (
        Command(argv=("rm", "-rf", part, component.tree)),
        Command(argv=("mkdir", "-p", str(Path(component.tree).parent))),
        *copy,
        Command(argv=("mv", part, component.tree)),
    )
    return Step(
        name=f"{component.name}/tree",
        component=component.name,
        title="make the working copy",
        actions=actions,
        needs=needs,
        variables=variables,
        root=root,
        creates=(component.tree,),
        kept=False,
        inputs=inputs,
    )


def copy_actions(
    component: Component, folder: str
) -> tuple[tuple[Action, ...], tuple[tuple[str, str], ...]]:
    """How a patched and prepared copy of the source gets into a folder; checksums of the patches."""
    recipe = component.recipe
    actions: list[Action] = [Command(argv=("cp", "-a", "--reflink=auto", component.source, folder))]
    inputs: list[tuple[str, str]] = []
    for name in recipe.patches:
        path = Path(recipe.folder, name)
        inputs.append((f"patch {name}", _digest(path, f"{recipe.name}: patches")))
        actions.append(Command(argv=("patch", "-p1", "--forward", "-i", str(path)), folder=folder))
    actions += [
        Command(argv=command.run, folder=str(Path(folder, command.folder)))
        for command in recipe.prepare
    ]
    return tuple(actions), tuple(inputs)


def verify_step(
    component: Component, *, needs: tuple[str, ...], variables: Variables, root: str, report: Path
) -> Step:
    """Check what was built."""
    return Step(
        name=f"{component.name}/verify",
        component=component.name,
        title="check the result",
        actions=(Verify(component=component.name, report=str(report)),),
        needs=needs,
        variables=variables,
        root=root,
        creates=(str(report),),
    )


def _digest(path: Path, where: str) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(
            f"{where}: {path} cannot be read",
            why=error.strerror or str(error),
            hint="check patches",
        ) from error


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
