"""Turn resolved recipes into a plan: steps, their order, their variables. Runs nothing.

Combines the actions of sources, environments and builders. The steps that every component has,
whatever builds it (fetch, working copy, verification), are made here. Decisions made for the user
are written into the notes of the plan.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from torchyard.builds.build_folders import BuildFolder, BuildsDirectory, check_build_path
from torchyard.builds.builders import BUILDERS, BuilderContext, model_of
from torchyard.builds.compatibility import release_facts
from torchyard.builds.environments import plan_environment
from torchyard.builds.environments.conda import COMPILER_TRIPLES, conda_platform
from torchyard.builds.environments.model import EnvironmentPlan, join_paths
from torchyard.builds.meter.compiler_launcher import meter_actions
from torchyard.builds.plan import Action, Command, Component, Plan, Step, Variables, Verify
from torchyard.builds.recipe import EnvironmentTable, Recipe, fill_placeholders
from torchyard.builds.recipe_file import BuildRequest, ResolvedBuild, patch_checksum, resolve
from torchyard.builds.sandbox import abilities
from torchyard.builds.sources import fetch_actions
from torchyard.builds.sources.configure_downloads import (
    configure_downloads,
    download_actions,
    download_variables,
)
from torchyard.builds.sources.fetch_plan import FetchPlace
from torchyard.errors import UsageError


def fetch_place(component: Component, home: BuildsDirectory) -> FetchPlace:
    """Return where the source of a component is fetched to."""
    return FetchPlace(
        destination=Path(component.source),
        downloads=home.downloads,
        where=f"{component.name}: source",
        complete=lambda tree: download_actions(component.recipe, str(tree), home.downloads),
    )


def fetch_step(component: Component, home: BuildsDirectory, variables: Variables) -> Step:
    """Return the step that fetches the source of a component."""
    fetch = fetch_actions(component.recipe.source, fetch_place(component, home))
    # Fetching uses system programs only: the environment may not exist yet.
    inherited = tuple(
        (name, value) for name, value in variables if name in ("HOME", "LANG", "LC_ALL")
    )
    return Step(
        name=f"{component.name}/fetch",
        component=component.name,
        title=f"fetch {fetch.summary}",
        actions=fetch.actions,
        variables=(
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            *inherited,
        ),
        network=True,
        creates=(component.source,),
        kept=False,
        inputs=fetch.inputs,
    )


def tree_step(context: BuilderContext, *, needs: tuple[str, ...]) -> Step:
    """Return the step that makes the patched and prepared working copy of the source.

    Builds write into the source tree (e.g. PyTorch's code generation), so each has its own copy. The
    copy gets its name only when all patches and prepare commands have succeeded.
    """
    tree = context.component.tree
    copy, inputs = copy_actions(context.component, f"{tree}.part")
    actions = (
        Command(argv=("rm", "-rf", f"{tree}.part", tree)),
        Command(argv=("mkdir", "-p", str(Path(tree).parent))),
        *copy,
        Command(argv=("mv", f"{tree}.part", tree)),
    )
    step = context.step("tree", "make the working copy", actions, needs=needs, creates=(tree,))
    return replace(step, kept=False, inputs=inputs)


def copy_actions(
    component: Component, folder: str
) -> tuple[tuple[Action, ...], tuple[tuple[str, str], ...]]:
    """Return the actions that make a patched and prepared copy, and the patches' checksums."""
    recipe = component.recipe
    actions: list[Action] = [Command(argv=("cp", "-a", "--reflink=auto", component.source, folder))]
    inputs: list[tuple[str, str]] = []
    for name in recipe.patches:
        path = Path(recipe.folder, name)
        inputs.append((f"patch {name}", patch_checksum(recipe, name)))
        actions.append(Command(argv=("patch", "-p1", "--forward", "-i", str(path)), folder=folder))
    actions += [
        Command(argv=command.run, folder=str(Path(folder, command.folder)))
        for command in recipe.prepare
    ]
    return tuple(actions), tuple(inputs)


_CONDA_GCC: Final = re.compile(r"gcc_linux-\w+\s*={1,2}\s*(\d+\.\d+\.\d+)(?=$|=)")
_METER: Final = "environment/meter"


@dataclass(frozen=True, kw_only=True)
class _PlanContext:
    """Values shared by all components of a plan."""

    home: BuildsDirectory
    folder: BuildFolder
    environment: EnvironmentPlan
    machine: str


def default_name(build: ResolvedBuild) -> str:
    """Return the default name of a build: recipe, version, variant and model."""
    recipe = build.recipe
    model = model_of(recipe.options) if recipe.builder == "torchbench" else ""
    parts = (recipe.name, recipe.version, recipe.variant, model)
    return "-".join(part for part in parts if part)


def make_plan(
    request: BuildRequest,
    *,
    home: BuildsDirectory,
    name: str = "",
    resolved: ResolvedBuild | None = None,
    environ: Mapping[str, str] | None = None,
) -> Plan:
    """Return the plan of a build; reads recipe files and looks for tools, changes nothing."""
    build = resolved or resolve(request)
    name = name or default_name(build)
    folder = home.build(name)
    check_build_path(folder.folder)
    environment = plan_environment(
        filled_environment(build, home=home, name=name, machine=request.machine),
        folder=folder.folder,
        packages=_packages(build),
        where=f"{build.recipe.name}: environment",
        environ=os.environ if environ is None else environ,
        python_range=_python_range(build),
    )
    context = _PlanContext(
        home=home, folder=folder, environment=environment, machine=request.machine
    )
    meter = Step(
        name=_METER,
        component="environment",
        title="build the compile meter",
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
        component = _component(recipe, context, build.components)
        component_steps = _component_steps(
            component, context, tuple(last[need] for need in recipe.needs)
        )
        components[recipe.name] = component
        steps += component_steps
        last[recipe.name] = component_steps[-1].name
    return Plan(
        name=name,
        folder=str(folder.folder),
        components=tuple(components.values()),
        steps=tuple(steps),
        jobs=0,
        jobs_why="",
        notes=(*environment.notes, *_network_notes()),
        missing=environment.missing,
    )


def filled_environment(
    build: ResolvedBuild, *, home: BuildsDirectory, name: str, machine: str
) -> EnvironmentTable:
    """Return the environment of a build with all placeholders replaced."""
    values = _placeholder_values(build.recipe, home, home.build(name), machine, build.components)
    recipe = replace(build.recipe, components=())
    return fill_placeholders(recipe, values, where=recipe.name, only="environment").environment


def _python_range(build: ResolvedBuild) -> str:
    """Return the Python versions of the first component in the compatibility table."""
    for recipe in build.components:
        if recipe.builder == "python" and recipe.known_release:
            return release_facts(recipe.known_release, recipe.version).needs.get("python", "")
    return ""


def _network_notes() -> tuple[str, ...]:
    allowed = abilities()
    if allowed.can_unshare_network:
        return ()
    why = f"{allowed.why_not} ({allowed.hint})"
    return (f"build steps can use the network, because it cannot be disabled: {why}",)


def _packages(build: ResolvedBuild) -> tuple[str, ...]:
    """Return the pip requirements of all components, which share one environment."""
    requirements = [
        *build.environment.venv.packages,
        *(item for recipe in build.components for item in recipe.environment.venv.packages),
    ]
    for recipe in build.components:
        if recipe.builder == "python" and recipe.known_release:
            facts = release_facts(recipe.known_release, recipe.version)
            requirements += facts.build_requires
        if _front_end(recipe) == "pep517" and recipe.python.install == "wheel":
            requirements.append("build")
    return tuple(dict.fromkeys(requirements))


def _placeholder_values(
    recipe: Recipe,
    home: BuildsDirectory,
    folder: BuildFolder,
    machine: str,
    components: Iterable[Recipe],
) -> dict[str, str]:
    """Return the values of the {placeholders} of a recipe."""
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
        "source": str(
            home.source(_with_source(recipe), [item.name for item in configure_downloads(recipe)])
        ),
        "tree": str(folder.tree(recipe.name)),
    }
    environment = recipe.environment
    names["conda-platform"] = conda_platform(machine)
    names["conda-triple"] = COMPILER_TRIPLES.get(names["conda-platform"], "")
    names["cuda-folder"] = "/usr/local/cuda" + "".join(
        f"-{part}" for part in [".".join(environment.cuda.split(".")[:2])] if part
    )
    versions = {"cuda": environment.cuda, "gcc": _gcc_version(recipe)}
    names |= {key: value for key, value in versions.items() if value}
    for part in components:
        if part.name in recipe.needs:
            names |= {
                f"needs.{part.name}.tree": str(folder.tree(part.name)),
                f"needs.{part.name}.prefix": str(folder.prefix),
                f"needs.{part.name}.version": part.version,
            }
    return names


def _gcc_version(recipe: Recipe) -> str:
    """Return the version of gcc: that of conda's package, else `gcc` of the environment.

    For conda, it is also the name of the folder in `lib/gcc/TRIPLE`, which a flag may name.
    """
    environment = recipe.environment
    named = [text for text in environment.conda.packages if text.startswith("gcc_linux-")]
    if environment.use != "conda" or not named:
        return environment.gcc
    match = _CONDA_GCC.match(named[0].replace("{gcc}", environment.gcc))
    if match is None and any("{gcc}" in value for value in environment.variables.values()):
        raise UsageError(
            f"{recipe.name}: environment.conda: a flag requires the exact version of gcc",
            hint="write environment.gcc=13.3.0 or gcc_linux-64=13.3.0, with three numbers",
        )
    return match[1] if match is not None else environment.gcc


def _with_source(recipe: Recipe) -> Recipe:
    """Return the recipe with the placeholders of its source replaced and its path absolute."""
    values = {"version": recipe.version, "release": ".".join(recipe.version.split(".")[:2])}
    versioned = fill_placeholders(recipe, values, where=recipe.name, only="source")
    source = versioned.source
    if source.folder is None:
        return versioned
    # A path in a recipe file is relative to the file.
    path = str(Path(recipe.folder, Path(source.folder.path).expanduser()))
    return replace(versioned, source=replace(source, folder=replace(source.folder, path=path)))


def _component(recipe: Recipe, context: _PlanContext, components: Iterable[Recipe]) -> Component:
    """Return the component with its paths and all placeholders of its recipe replaced."""
    names = _placeholder_values(recipe, context.home, context.folder, context.machine, components)
    names["python"] = context.environment.python
    versioned = _with_source(recipe)
    return Component(
        name=recipe.name,
        recipe=fill_placeholders(versioned, names, where=recipe.name),
        source=names["source"],
        tree=names["tree"],
        prefix=names["prefix"],
        wheels=names["wheels"],
        python=names["python"],
        release=recipe.version,
        needs=recipe.needs,
    )


def _component_steps(
    component: Component, context: _PlanContext, before: tuple[str, ...]
) -> tuple[Step, ...]:
    environment = context.environment
    fetch = fetch_step(component, context.home, environment.variables)
    builder = BuilderContext(
        component=component,
        needs=(f"{component.name}/tree", _METER, *before),
        variables=_variables(component, environment),
        root=environment.root,
        dist=context.folder.dist(component.name),
        front_end=_front_end(component.recipe),
    )
    tree = tree_step(builder, needs=(fetch.name, *environment.last_step))
    built = BUILDERS[component.recipe.builder](builder)
    report = str(context.folder.report(component.name))
    verify = builder.step(
        "verify",
        "check the result",
        (Verify(component=component.name, report=report),),
        needs=((built or (tree,))[-1].name,),
        creates=(report,),
    )
    return (fetch, tree, *built, verify)


def _variables(component: Component, environment: EnvironmentPlan) -> tuple[tuple[str, str], ...]:
    """Return the variables of the environment and the component, with the prefix if it needs it."""
    values = dict(environment.variables)
    values.update(component.recipe.environment.variables)
    values.update(download_variables(component.recipe, component.tree))
    if component.needs:
        prefix = component.prefix
        for name, folder in (
            ("CMAKE_PREFIX_PATH", prefix),
            ("CPATH", f"{prefix}/include"),
            ("LIBRARY_PATH", f"{prefix}/lib"),
            ("LD_LIBRARY_PATH", f"{prefix}/lib"),
        ):
            values[name] = join_paths(folder, values.get(name, ""))
    return tuple(values.items())


def _front_end(recipe: Recipe) -> str:
    """Return the front end that builds the wheel, from the recipe or the compatibility table."""
    if recipe.builder != "python":
        return ""
    if recipe.python.front_end != "auto":
        return recipe.python.front_end
    if not recipe.known_release:
        return "pep517"
    release_front_end = release_facts(recipe.known_release, recipe.version).front_end
    return "setup.py" if release_front_end == "setup.py" else "pep517"
