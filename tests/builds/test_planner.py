"""Plans: which steps, in which order, with which commands and variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchyard.builds.build_folders import BuildsDirectory
from torchyard.builds.plan import Command, Plan, Step, fingerprints
from torchyard.builds.planner import default_name, make_plan
from torchyard.builds.recipe_file import BuildRequest, resolve
from torchyard.errors import UsageError

ENVIRON = {"PATH": "/usr/bin:/bin", "HOME": "/home/somebody"}


class Workspace:
    """Recipes and a home in a folder; plans are made and nothing is run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = BuildsDirectory(folder=folder / "home")
        self.source = folder / "source"
        self.source.mkdir()

    def plan(
        self,
        text: str,
        *,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        name: str = "it",
        recipe: str = "mine",
    ) -> Plan:
        if "[source" not in text and "components" not in text:
            text = f"{text}\n[source.folder]\npath = 'source'\n"
        (self.folder / f"{recipe}.toml").write_text(text)
        request = BuildRequest(
            recipe=f"./{recipe}.toml",
            settings=settings or {},
            folder=self.folder,
            machine="aarch64",
        )
        return make_plan(request, home=self.home, name=name, environ=ENVIRON)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def step_of(plan: Plan, name: str) -> Step:
    return next(step for step in plan.steps if step.name == name)


def lines(step: Step) -> list[str]:
    return [" ".join(action.argv) for action in step.actions if isinstance(action, Command)]


CURRENT = "[environment]\nuse = 'current'\n"


def test_a_cmake_project(workspace: Workspace) -> None:
    plan = workspace.plan(f"options = {{ FAST = true, LEVEL = 3, NAME = 'x y' }}\n{CURRENT}")
    assert [step.name for step in plan.steps] == [
        "environment/meter",
        "mine/fetch",
        "mine/tree",
        "mine/configure",
        "mine/build",
        "mine/install",
        "mine/verify",
    ]
    configure = step_of(plan, "mine/configure").actions[-1]
    assert isinstance(configure, Command)
    for word in ("-DFAST=ON", "-DLEVEL=3", "-DNAME=x y", "-DCMAKE_BUILD_TYPE=Release"):
        assert word in configure.argv
    assert f"-DCMAKE_INSTALL_PREFIX={workspace.home.build('it').prefix}" in configure.argv
    assert [step.name for step in plan.steps if step.network] == ["mine/fetch"]
    assert [step.name for step in plan.steps if step.compiles] == ["mine/configure", "mine/build"]
    assert not workspace.home.folder.exists(), "planning changes nothing"


def test_a_make_project(workspace: Workspace) -> None:
    plan = workspace.plan(
        f"builder = 'make'\noptions = {{ A = true }}\nmake.targets = ['libs']\n{CURRENT}"
    )
    (build,) = step_of(plan, "mine/build").actions
    assert isinstance(build, Command)
    assert build.argv[-2:] == ("libs", "A=1")
    assert build.folder == str(workspace.home.build("it").tree("mine"))
    install = lines(step_of(plan, "mine/install"))[0]
    assert install.startswith("make install A=1")
    assert f"PREFIX={workspace.home.build('it').prefix}" in install


def test_a_scons_project_stays_in_its_tree(workspace: Workspace) -> None:
    plan = workspace.plan(
        f"builder = 'scons'\noptions = {{ neon = true }}\nscons.arguments = ['-Q']\n{CURRENT}"
    )
    (build,) = step_of(plan, "mine/build").actions
    assert isinstance(build, Command)
    assert build.argv[-2:] == ("neon=1", "-Q")
    assert not [step for step in plan.steps if step.name == "mine/install"]


def test_nothing_to_build_is_fetched_and_checked(workspace: Workspace) -> None:
    plan = workspace.plan(f"builder = 'none'\n{CURRENT}")
    assert step_of(plan, "mine/verify").needs == ("mine/tree",)


def python_text(more: str = "") -> str:
    return f"builder = 'python'\nversion = '2.6.0'\noptions = {{ USE_X = false }}\n{more}\n"


def test_a_python_project_by_pep517_gets_the_package_that_builds_wheels(
    workspace: Workspace,
) -> None:
    plan = workspace.plan(python_text())
    packages = lines(step_of(plan, "environment/packages"))[-1]
    assert packages.endswith(" -- build")
    build = step_of(plan, "mine/build")
    assert "-m build --wheel --no-isolation" in lines(build)[-1]
    assert dict(build.variables)["USE_X"] == "0"
    assert str(workspace.home.build("it").wheels) in lines(step_of(plan, "mine/install"))[-1]


def test_a_python_project_by_setup_py(workspace: Workspace) -> None:
    plan = workspace.plan(python_text("python.front-end = 'setup.py'"))
    assert not [step for step in plan.steps if step.name == "environment/packages"]
    assert "setup.py bdist_wheel --dist-dir" in lines(step_of(plan, "mine/build"))[-1]


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.6.0", "setup.py bdist_wheel"),
        ("2.9.0", "-m build --wheel"),
        ("2.14.0", "-m build --wheel"),
        ("main", "-m build --wheel"),
    ],
)
def test_the_era_of_the_front_end_follows_from_the_release(
    workspace: Workspace, version: str, words: str
) -> None:
    text = python_text("known-release = 'pytorch'").replace("2.6.0", version)
    plan = workspace.plan(text)
    assert words in lines(step_of(plan, "mine/build"))[-1]
    packages = lines(step_of(plan, "environment/packages"))[-1].split(" -- ")[1].split()
    assert ("build" in packages) == words.startswith("-m build")
    backend = "setuptools" if version in ("2.6.0", "2.9.0") else "scikit-build-core"
    assert any(word.startswith(backend) for word in packages)


def test_an_editable_install_has_no_wheel(workspace: Workspace) -> None:
    plan = workspace.plan(python_text("python.install = 'editable'"))
    assert "--editable ." in lines(step_of(plan, "mine/build"))[-1]
    assert not [step for step in plan.steps if step.name == "mine/install"]


def test_options_for_scikit_build(workspace: Workspace) -> None:
    plan = workspace.plan(python_text("python.options-as = 'cmake-args'"))
    assert dict(step_of(plan, "mine/build").variables)["CMAKE_ARGS"] == "-DUSE_X=OFF"


def test_requirement_files_and_configure_come_before_the_wheel(workspace: Workspace) -> None:
    more = (
        "python.configure = ['setup.py', 'build', '--cmake-only']\n"
        "environment.venv.requirements = ['requirements.txt']"
    )
    plan = workspace.plan(python_text(more))
    names = [step.name.partition("/")[2] for step in plan.steps if step.component == "mine"]
    assert names == ["fetch", "tree", "requirements", "configure", "build", "install", "verify"]
    assert step_of(plan, "mine/requirements").network
    tree = workspace.home.build("it").tree("mine")
    assert f"-r {tree}/requirements.txt" in lines(step_of(plan, "mine/requirements"))[0]


STACK = """\
[[components]]
recipe = "./user.toml"
needs = ["library"]
[[components]]
recipe = "./library.toml"
[environment]
use = "current"
"""


def stack(workspace: Workspace) -> Plan:
    source = "[source.folder]\npath = 'source'\n"
    (workspace.folder / "library.toml").write_text(f"version = '7'\n{source}")
    (workspace.folder / "user.toml").write_text(
        "options = { LIB = '{needs.library.prefix}/lib', SEEN = '{needs.library.version}' }\n"
        f"{source}[environment.variables]\nTREE = '{{tree}}'\n"
    )
    return workspace.plan(STACK)


def test_a_component_sees_what_it_needs(workspace: Workspace) -> None:
    plan = stack(workspace)
    prefix = workspace.home.build("it").prefix
    configure = step_of(plan, "user/configure")
    assert f"-DLIB={prefix}/lib" in lines(configure)[-1]
    assert "-DSEEN=7" in lines(configure)[-1]
    variables = dict(configure.variables)
    assert variables["CMAKE_PREFIX_PATH"].split(":")[0] == str(prefix)
    assert variables["LD_LIBRARY_PATH"].split(":")[0] == f"{prefix}/lib"
    assert variables["TREE"] == str(workspace.home.build("it").tree("user"))
    assert "library/verify" in configure.needs
    own = dict(step_of(plan, "library/configure").variables)
    assert "LD_LIBRARY_PATH" not in own


def test_steps_come_after_those_they_need(workspace: Workspace) -> None:
    plan = stack(workspace)
    seen: set[str] = set()
    for step in plan.steps:
        assert set(step.needs) <= seen, step.name
        seen.add(step.name)


def test_patches_and_preparation_are_in_the_copy(workspace: Workspace) -> None:
    (workspace.folder / "fix.patch").write_text("--- a/x\n+++ b/x\n")
    text = (
        "patches = ['fix.patch']\n[[prepare]]\nrun = ['make', 'headers']\nfolder = 'src'\n"
        f"{CURRENT}"
    )
    tree = step_of(workspace.plan(text), "mine/tree")
    part = f"{workspace.home.build('it').tree('mine')}.part"
    said = lines(tree)
    assert f"patch -p1 --forward -i {workspace.folder}/fix.patch" in said
    prepare = next(
        action
        for action in tree.actions
        if isinstance(action, Command) and action.argv == ("make", "headers")
    )
    assert prepare.folder == f"{part}/src"
    assert said[-1] == f"mv {part} {workspace.home.build('it').tree('mine')}"
    assert said.index(f"patch -p1 --forward -i {workspace.folder}/fix.patch") < len(said) - 2


def changed(before: Plan, after: Plan) -> list[str]:
    """Steps whose fingerprint is another one."""
    old, new = fingerprints(before), fingerprints(after)
    return [step.name for step in after.steps if old.get(step.name) != new[step.name]]


def test_what_costs_which_steps(workspace: Workspace) -> None:
    (workspace.folder / "fix.patch").write_text("one\n")
    text = f"patches = ['fix.patch']\n[options]\nX = 1\n{CURRENT}"
    plan = workspace.plan(text)
    assert changed(plan, workspace.plan(text)) == []
    assert changed(plan, replace(plan, jobs=9, jobs_why="more", notes=("x",))) == []
    other = workspace.plan(text.replace("X = 1", "X = 2"))
    assert changed(plan, other) == [
        f"mine/{x}" for x in ("configure", "build", "install", "verify")
    ]
    (workspace.folder / "fix.patch").write_text("two\n")
    assert changed(plan, workspace.plan(text))[0] == "mine/tree"
    (workspace.source / "new.c").write_text("int x;")
    assert changed(plan, workspace.plan(text))[0] == "mine/fetch"


def test_another_meter_costs_nothing(workspace: Workspace) -> None:
    plan = workspace.plan(CURRENT)
    meter = step_of(plan, "environment/meter")
    other = replace(
        plan,
        steps=tuple(
            replace(step, actions=step.actions[:1]) if step is meter else step
            for step in plan.steps
        ),
    )
    assert changed(plan, other) == ["environment/meter"]


def test_placeholders_are_filled_in_and_unknown_ones_reported(workspace: Workspace) -> None:
    text = f"version = '2.6.1'\n[options]\nA = '{{prefix}} {{version}} {{release}}'\n{CURRENT}"
    plan = workspace.plan(text)
    prefix = workspace.home.build("it").prefix
    assert plan.components[0].recipe.options["A"] == f"{prefix} 2.6.1 2.6"
    with pytest.raises(UsageError, match=r"mine\.options\.A: unknown placeholder \{prefx\}"):
        workspace.plan(text.replace("{prefix}", "{prefx}"))
    with pytest.raises(UsageError, match="unknown placeholder"):
        workspace.plan(f"[options]\nA = '{{needs.other.prefix}}'\n{CURRENT}")


def test_a_path_in_a_recipe_starts_at_its_file(workspace: Workspace) -> None:
    plan = workspace.plan(CURRENT)
    source = plan.components[0].recipe.source.folder
    assert source is not None
    assert source.path == str(workspace.source)


def test_names_of_builds() -> None:
    build = resolve(BuildRequest(recipe="pytorch", variant="cpu-arm", version="2.6.0"))
    assert default_name(build) == "pytorch-2.6.0-cpu-arm"
    assert default_name(resolve(BuildRequest(recipe="generic"))) == "generic"


def test_a_name_that_cannot_be_a_folder(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="is not a valid build name"):
        workspace.plan(CURRENT, name="../up")


@pytest.mark.parametrize("name", ["a;b", "a:b", 'a"b', "a\\b", "a\nb", "a\udcffb"])
def test_a_folder_that_a_build_system_cannot_represent_is_rejected(
    workspace: Workspace, name: str
) -> None:
    workspace.home = BuildsDirectory(folder=workspace.folder / name)
    with pytest.raises(UsageError, match="the path of the build folder") as caught:
        workspace.plan("builder = 'cmake'")
    assert "TORCHYARD_HOME" in caught.value.hint
    caught.value.what.encode()


@pytest.mark.parametrize("name", ["it's", "a b", "a$b", "a,b=c", "{env}", "é"])
def test_other_unusual_folders_are_accepted(workspace: Workspace, name: str) -> None:
    workspace.home = BuildsDirectory(folder=workspace.folder / name)
    assert workspace.plan("builder = 'cmake'").folder.startswith(str(workspace.folder / name))
