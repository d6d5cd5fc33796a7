"""A plan as it runs inside a container image. No I/O.

Shared by Dockerfiles and Apptainer definitions: the build uses other folders, and the system of the
image instead of a root folder. Paths are rewritten in commands, files and variables; packages are
installed before the steps, and checks run after them.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

from torchyard.builds.activation import SEARCH_PATHS
from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.environments.model import SYSTEM_PATH, join_paths
from torchyard.builds.export.image_base import (
    CONDA_INSTALLERS,
    CONDA_PROGRAMS,
    ImageBase,
    LocalInput,
    areas_of,
    choose_base,
    conda_tool,
    gpu_of,
    local_inputs,
    refuse_foreign_python,
    root_of,
    system_packages,
)
from torchyard.builds.export.shell import (
    Difference,
    ExportFacts,
    check_commands,
    command_text,
    difference_statements,
    freeze_command,
    shared_by_most,
    step_statements,
    with_line_break,
    without_own_steps,
    wrapped,
)
from torchyard.builds.meter.compile_costs import JOB_VARIABLES
from torchyard.builds.plan import Action, Command, Component, Plan, Step, Variables, WriteFile

T = TypeVar("T")


class PathRewrite:
    """Replaces folders in texts; the longest match is used."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._texts = {
            form(old): form(new)
            for old, new in folders.items()
            for form in (_address, _inside_quotes, str)
        }
        longest_first = sorted(self._texts, key=len, reverse=True)
        # `/home/builds/one` must not match in `/home/builds/one-more` or in `/home/builds/one.old`.
        self._pattern = re.compile(
            "(" + "|".join(map(re.escape, longest_first)) + r")(?![\w+-]|\.\w)"
        )

    def text(self, text: str) -> str:
        """Replace all paths in a text."""
        return self._pattern.sub(lambda match: self._texts[match[1]], text)

    def apply(self, value: T) -> T:
        """Replace all paths in a dataclass, recursively."""
        rewritten: T = self._walk(value)
        return rewritten

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            return dataclasses.replace(
                value, **{name: self._walk(getattr(value, name)) for name in names}
            )
        if isinstance(value, tuple):
            return tuple(self._walk(item) for item in value)
        if isinstance(value, dict):
            return {key: self._walk(item) for key, item in value.items()}
        return value


def _inside_quotes(path: str) -> str:
    """Escape quotes as `shlex.quote` does."""
    return path.replace("'", "'\"'\"'")


def _address(path: str) -> str:
    return PurePosixPath(path).as_uri()


_AT_RUN_TIME: Final = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONNOUSERSITE"),
    *("CUDA_HOME", "ROCM_PATH", "HIP_PLATFORM"),
)
"""Variables of the build that programs need at run time; the others are for compilers."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """The content of an image definition."""

    plan: Plan
    """With the folders inside the image; without smoke tests if they need a GPU."""
    checks: tuple[tuple[str, ...], ...]
    """Commands that check the finished image, to be run in an empty folder."""
    base: ImageBase
    packages: tuple[str, ...]
    conda: str
    """Conda program that must be installed first; empty if none is needed."""
    source_packages: bool
    """Whether a step needs build dependencies, so that apt must list source packages."""
    archive_areas: tuple[str, ...]
    """Areas of the archive that the steps install from; empty means those of the image."""
    inputs: tuple[LocalInput, ...]
    """Files and folders of this machine that the build needs."""
    gpu: str
    """`cuda`, `rocm` or empty."""
    rooted: bool
    """Whether the plan has a root folder, which the image replaces."""
    in_conda: bool
    variables: Variables
    """Environment of the finished image."""
    kept: tuple[str, ...]
    """Folders and files that the finished image needs."""

    @property
    def shared(self) -> Variables:
        """Variables that most steps share, set once. ENV of a Dockerfile cannot have line breaks."""
        return tuple(pair for pair in shared_by_most(self.plan.steps) if "\n" not in pair[1])

    @property
    def freeze_file(self) -> str:
        """Path of the list of Python packages."""
        return str(BuildFolder(folder=Path(self.plan.folder)).freeze_file)

    @property
    def python(self) -> str:
        """Interpreter of the environment; empty if there is none."""
        return next((part.python for part in self.plan.components if part.python), "")

    @property
    def not_kept(self) -> tuple[str, ...]:
        """Folders that only the build needs."""
        folder = self.plan.folder
        trees = [part.tree for part in self.plan.components if part.tree not in self.kept]
        wheels = [f"{part.tree}.dist" for part in self.plan.components if part.python]
        shared = [f"{folder}/{name}" for name in ("sources", "downloads", "local", "check")]
        return (*shared, *trees, *wheels)


def image_of(plan: Plan, facts: ExportFacts) -> Image:
    """Convert a plan to an image; raise UsageError if it needs the Python of this machine."""
    refuse_foreign_python(plan)
    base, gpu = choose_base(plan, facts), gpu_of(plan)
    root, _ = root_of(plan)
    inputs = local_inputs(plan)
    folder = f"{facts.image_folder}/{plan.name}"
    rewrite = PathRewrite(
        {
            plan.folder: folder,
            facts.sources: f"{folder}/sources",
            facts.downloads: f"{folder}/downloads",
            **{item.path: f"{folder}/local/{item.name}" for item in inputs},
        }
    )
    tools = [tool for step in plan.steps if (tool := conda_tool(step)[0])]
    steps = tuple(_inside(step, root, facts) for step in without_own_steps(plan).steps)
    steps = tuple(step for step in steps if step.actions)
    rewritten = rewrite.apply(replace(plan, steps=steps))
    return Image(
        plan=_without_smoke_tests(rewritten) if gpu else rewritten,
        checks=tuple(
            argv
            for part in rewritten.components
            for argv in check_commands(part, with_device=bool(gpu))
        ),
        base=base,
        packages=system_packages(plan, base),
        conda=tools[0] if tools and not facts.conda_program else "",
        source_packages=any("build-dep" in argv for argv in _argvs(plan)),
        archive_areas=areas_of(plan),
        inputs=inputs,
        gpu=gpu,
        rooted=bool(root),
        in_conda=bool(tools),
        variables=_run_time_variables(rewritten),
        kept=_kept(rewritten),
    )


def _inside(step: Step, root: str, facts: ExportFacts) -> Step:
    """Convert a step: the image replaces the root folder and the programs of this machine."""
    makes_root = bool(root) and not step.root and any(_below(path, root) for path in step.creates)
    actions = () if makes_root else tuple(_inside_actions(step, root, facts))
    variables = tuple(
        (name, "/root" if name == "HOME" else value) for name, value in step.variables
    )
    return replace(step, actions=actions, variables=variables, root="")


def _inside_actions(step: Step, root: str, facts: ExportFacts) -> Iterator[Action]:
    for action in step.actions:
        if not isinstance(action, Command):
            yield action
        elif root and not action.inside_root and any(_below(word, root) for word in action.argv):
            continue  # maintains the root folder, which the image replaces
        else:
            yield replace(action, argv=_inside_argv(action.argv, facts, rooted=bool(root)))


def _inside_argv(argv: tuple[str, ...], facts: ExportFacts, *, rooted: bool) -> tuple[str, ...]:
    """Replace programs of this machine by those of the image."""
    name = PurePosixPath(argv[0]).name
    if name == "uv" and argv[1:2] == ("venv",):
        return ("python3", "-m", "venv", "--clear", "--", argv[-1])
    if name == "uv" and argv[1:4] == ("pip", "install", "--python"):
        return (argv[4], "-m", "pip", "install", *argv[5:])
    if argv[1:3] == ("-m", "venv") and not rooted:
        return ("python3", *argv[1:])
    if name in CONDA_PROGRAMS:
        return (facts.conda_program or CONDA_PROGRAMS[name], *argv[1:])
    return argv


def _without_smoke_tests(plan: Plan) -> Plan:
    """Remove the smoke tests: there is no GPU while an image is built."""
    return replace(
        plan,
        components=tuple(
            replace(
                part,
                recipe=replace(part.recipe, verify=replace(part.recipe.verify, smoke=())),
            )
            for part in plan.components
        ),
    )


def _argvs(plan: Plan) -> Iterator[tuple[str, ...]]:
    for step in plan.steps:
        for action in step.actions:
            if isinstance(action, Command):
                yield action.argv


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _run_time_variables(plan: Plan) -> Variables:
    """Return the variables of all components; folders of the build come first."""
    merged: dict[str, str] = {}
    for component in plan.components:
        steps = [step for step in plan.steps if step.component == component.name]
        # The last step has the variables of a user of the component, without build options.
        for name, value in (dict(steps[-1].variables) if steps else {}).items():
            if name in _AT_RUN_TIME:
                is_path = name in SEARCH_PATHS
                merged[name] = join_paths(merged.get(name, ""), value) if is_path else value
        if _installs(component):
            libraries = f"{component.prefix}/lib"
            merged["PATH"] = join_paths(f"{component.prefix}/bin", merged.get("PATH", SYSTEM_PATH))
            merged["LD_LIBRARY_PATH"] = join_paths(libraries, merged.get("LD_LIBRARY_PATH", ""))
    return tuple(merged.items())


def _kept(plan: Plan) -> tuple[str, ...]:
    folders = [part.tree for part in plan.components if _stays_in_tree(part)]
    if any(_installs(part) for part in plan.components):
        folders.append(plan.components[0].prefix)
    if any(part.python for part in plan.components):
        layout = BuildFolder(folder=Path(plan.folder))
        folders += [f"{plan.folder}/env", str(layout.freeze_file)]
    if any(
        part.recipe.builder == "python" and not _stays_in_tree(part) for part in plan.components
    ):
        folders.append(plan.components[0].wheels)
    return tuple(folders)


def _installs(component: Component) -> bool:
    recipe = component.recipe
    return (recipe.builder == "cmake" and recipe.cmake.install) or (
        recipe.builder == "make" and bool(recipe.make.install_targets)
    )


def _stays_in_tree(component: Component) -> bool:
    recipe = component.recipe
    if recipe.builder == "python":
        return recipe.python.install == "editable"
    return not _installs(component)


_INDENT: Final = "    "


def package_statements(packages: tuple[str, ...]) -> list[str]:
    """Return statements that install system packages and remove the package lists."""
    install = ("apt-get", "install", "--yes", "--no-install-recommends", "--", *packages)
    words = command_text(install, (("DEBIAN_FRONTEND", "noninteractive"),))
    return [
        f"{_INDENT}apt-get update",
        wrapped(words, _INDENT),
        f"{_INDENT}rm -rf /var/lib/apt/lists/*",
    ]


def source_list_statements(image: Image) -> list[str]:
    """Return statements that enable source packages and areas, in both formats of apt sources."""
    stanzas, lines = [], []
    if image.archive_areas:
        areas = " ".join(image.archive_areas)
        stanzas.append(f"s/^Components: .*/Components: {areas}/")
        lines.append(
            f"{_INDENT}[ ! -s /etc/apt/sources.list ] || sed -i 's/ main.*/ {areas}/' /etc/apt/sources.list"
        )
    if image.source_packages:
        stanzas.append("s/^Types: deb$/Types: deb deb-src/")
        lines.append(
            f"{_INDENT}[ ! -s /etc/apt/sources.list ] || sed -n 's/^deb /deb-src /p'"
            " /etc/apt/sources.list >/etc/apt/sources.list.d/source-packages.list"
        )
    if not stanzas:
        return []
    return [
        (
            f"{_INDENT}for file in /etc/apt/sources.list.d/*.sources; do"
            f' [ ! -f "$file" ] || sed -i \'{"; ".join(stanzas)}\' "$file"; done'
        ),
        *lines,
    ]


def conda_statements(image: Image) -> list[str]:
    """Return statements that install the conda program."""
    return [_INDENT + text for text in CONDA_INSTALLERS[image.conda]]


def one_step(image: Image, step: Step, *, jobs: str) -> list[str]:
    """Return the statements of one step, given the shared variables; `jobs` is a shell word."""
    difference = Difference.of(step, image.shared)
    statements = difference_statements(difference, one_line=True)
    if step.compiles:
        values = " ".join(f'{name}="{jobs}"' for name in JOB_VARIABLES)
        statements.append(f"{_INDENT}export {values}")
    return with_line_break(statements + step_statements(image.plan, step, one_line=True))


def freeze_statements(image: Image) -> list[str]:
    """Return statements that list all Python packages; none if there is no Python."""
    command = freeze_command(image.plan, image.freeze_file)
    if command is None:
        return []
    step = Step(name="freeze", component="", title="", actions=(command,))
    return step_statements(image.plan, step, one_line=True)


def check_statements(image: Image, *, one_line: bool) -> list[str]:
    """Return statements for the import and the smoke tests, run in an empty folder."""
    if not image.checks:
        return []
    checks = [wrapped(command_text(argv, one_line=one_line), _INDENT) for argv in image.checks]
    statements = [f'{_INDENT}cd "$(mktemp -d)"', *checks]
    return with_line_break(statements) if one_line else statements


def check_file(image: Image) -> WriteFile:
    """Return the checks as a script in the image, for a machine with a GPU."""
    lines = ["#!/bin/sh", "# Check this build on a machine with a GPU.", "set -eu"]
    checks = [text.removeprefix(_INDENT) for text in check_statements(image, one_line=False)]
    return WriteFile(
        path=f"{image.plan.folder}/check.sh",
        text="\n".join((*lines, *checks)) + "\n",
        executable=True,
    )


def input_lines(image: Image) -> list[str]:
    """Return comments with the commands that copy local files next to the definition."""
    if not image.inputs:
        return []
    copies = [
        f"  mkdir -p local && cp -aT -- {shlex.quote(item.path)} local/{item.name}"
        for item in image.inputs
    ]
    return ["", "Before building, copy these files next to this one:", *copies]
