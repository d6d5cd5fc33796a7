"""The base of an environment: an interpreter of this machine, of a build, of a build in a root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.builds.environments.tiny_wheels import put_installed, write_wheel
from tests.builds.record_samples import make_record
from tests.builds.sandbox.sandbox_commands import STANDARD_LIBRARY, make_root, needs_mounts, run
from torchyard.builds.activation import write_runtime_files
from torchyard.builds.build_folders import BuildFolder, BuildsDirectory, exclusive_run_lock
from torchyard.builds.commands.run import build_request
from torchyard.builds.environments import plan_environment
from torchyard.builds.environments.base_interpreter import base_builds, find_base, resolve_base
from torchyard.builds.environments.model import EnvironmentPlan
from torchyard.builds.plan import BuildEvent, Command
from torchyard.builds.recipe import EnvironmentTable
from torchyard.builds.record import RecipeIdentity, WheelRecord, read_record, write_record
from torchyard.builds.running.build import BuildChoices, plan_build, run_build
from torchyard.builds.sandbox import Sandbox, root_python_script
from torchyard.errors import MissingTool, NotAllowed, UsageError

Perform = Callable[..., str]


@dataclass(frozen=True, kw_only=True)
class FinishedBuild:
    """A build as it lies on disk, with a torch that is only a name and a version."""

    home: BuildsDirectory
    folder: Path
    root: Path | None

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def inner(self) -> Path:
        return self.folder / "env" / "bin" / "python"


def finished(tmp_path: Path, name: str, *, rooted: bool = False, **changes: Any) -> FinishedBuild:
    if rooted and STANDARD_LIBRARY.startswith("/usr/"):
        pytest.skip("this interpreter lies in a system folder, which a root has of its own")
    home = BuildsDirectory(folder=tmp_path / "yard")
    folder = home.builds / name
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    (site_packages,) = (folder / "env").glob("lib/python3*/site-packages")
    put_installed(site_packages, "torch", "2.6.0+mine")
    build = FinishedBuild(
        home=home, folder=folder, root=make_root(folder / "root", modules="*") if rooted else None
    )
    if build.root:
        (build.root / "etc" / "only-here").write_text("in the root\n")
        text = root_python_script(root=str(build.root), python=str(build.inner), variables={})
    else:
        text = f'#!/bin/sh\nexec {build.inner} "$@"\n'
    build.python.parent.mkdir()
    build.python.write_text(text)
    build.python.chmod(0o755)
    record = make_record(
        **{
            "name": name,
            "python": str(build.python),
            "root": str(build.root or ""),
            "variables": {},
            **changes,
        }
    )
    write_record(folder, record)
    return build


def plan(folder: Path, base: Path | str, *packages: str, **keys: Any) -> EnvironmentPlan:
    environ = {
        "HOME": str(folder),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": (folder.parent / "wheels").as_uri(),
    }
    table = EnvironmentTable(base=str(base), **keys)
    return plan_environment(table, folder=folder, packages=packages, where="x", environ=environ)


def test_an_interpreter_of_this_machine(tmp_path: Path) -> None:
    base = find_base(sys.executable, {}, where="x")
    assert base.interpreter.path == sys.executable
    assert (base.root, base.build, base.checksum, base.variables) == ("", "", "", ())
    with pytest.raises(UsageError, match=r"x\.base: /nowhere/bin/python"):
        find_base("/nowhere/bin/python", {}, where="x.base")


def test_a_build_by_its_name(tmp_path: Path) -> None:
    build = finished(tmp_path, "torch")
    assert resolve_base("build:torch", build.home) == str(build.python)
    assert resolve_base("/usr/bin/python3", build.home) == "/usr/bin/python3"
    assert resolve_base("", build.home) == ""
    with pytest.raises(UsageError, match="no build 'torhc'") as caught:
        resolve_base("build:torhc", build.home)
    assert "torch" in caught.value.hint
    build.python.unlink()
    with pytest.raises(MissingTool, match="interpreter of the build 'torch' does not exist"):
        resolve_base("build:torch", build.home)


def test_every_path_of_a_build_means_the_build(tmp_path: Path) -> None:
    build = finished(tmp_path, "torch", variables={"LD_LIBRARY_PATH": "/blas/lib"})
    for path in (build.python, build.inner):
        base = find_base(str(path), {}, where="x")
        assert base.build == "torch"
        assert base.interpreter.path == str(build.inner)
        assert base.interpreter.version.startswith("3.")
        assert base.variables == (("LD_LIBRARY_PATH", "/blas/lib"),)
        assert base.root == ""


def test_bases_of_bases(tmp_path: Path) -> None:
    first = finished(tmp_path, "first")
    home = first.home
    on_first = RecipeIdentity(name="x", settings={"": {"environment.base": "build:first"}})
    second = finished(tmp_path, "second", recipe=on_first)
    on_second = RecipeIdentity(name="x", settings={"": {"environment.base": str(second.inner)}})
    third = finished(tmp_path, "third", recipe=on_second)
    assert base_builds("", home) == base_builds(sys.executable, home) == ()
    assert [one.folder.name for one in base_builds(str(third.python), home)] == [
        "third",
        "second",
        "first",
    ]
    first.python.unlink()
    assert [one.folder.name for one in base_builds(str(second.inner), home)] == ["second"]
    itself = RecipeIdentity(name="x", settings={"": {"environment.base": str(second.python)}})
    write_record(second.folder, replace(read_record(second.folder), recipe=itself))
    assert [one.folder.name for one in base_builds(str(second.inner), home)] == ["second"]


def test_what_the_base_needs_to_run_reaches_the_steps(tmp_path: Path) -> None:
    needed = {"LD_LIBRARY_PATH": "/blas/lib:/more/lib", "PYTHONPATH": "/modules"}
    build = finished(tmp_path, "torch", variables=needed)
    made = plan(tmp_path / "p", build.python, libraries=("/mine",))
    variables = dict(made.variables)
    assert variables["LD_LIBRARY_PATH"] == "/mine:/blas/lib:/more/lib"
    assert variables["LIBRARY_PATH"] == "/mine", "the base's are for the loader only"
    assert variables["PYTHONPATH"] == "/modules"
    assert made.notes[0] == "uses the packages of the build torch, which is not changed"


def test_another_wheel_is_another_base(tmp_path: Path) -> None:
    build = finished(tmp_path, "torch")
    record = make_record(python=str(build.python), root="", name="torch")

    def inputs() -> dict[str, str]:
        return dict(plan(tmp_path / "p", build.python).steps[0].inputs)

    first = inputs()
    write_record(build.folder, replace(record, plan_fingerprint="0" * 64, finished="later"))
    assert inputs() == first, "the same wheels of another plan"
    wheel = WheelRecord(file="torch.whl", sha256="e" * 64, size_bytes=1)
    parts = (*record.components[:-1], replace(record.components[-1], wheels=(wheel,)))
    write_record(build.folder, replace(record, components=parts))
    assert inputs() != first
    assert inputs()["python"] == first["python"]


def test_a_damaged_record_is_not_trusted(tmp_path: Path) -> None:
    build = finished(tmp_path, "torch")
    BuildFolder(folder=build.folder).record_file.write_text("{")
    base = find_base(str(build.python), {}, where="x")
    assert (base.build, base.interpreter.path) == ("", str(build.python))


@needs_mounts
def test_a_base_in_a_root_takes_the_build_in_there(tmp_path: Path) -> None:
    build = finished(tmp_path, "torch", rooted=True)
    made = plan(tmp_path / "p", build.python, "tiny")
    assert made.root == str(build.root)
    assert all(step.root == made.root for step in made.steps)
    assert made.steps[0].creates == (f"{tmp_path}/p/env/pyvenv.cfg",)
    make, layer = (one for one in made.steps[0].actions if isinstance(one, Command))
    assert make.argv[0] == str(build.inner), "not the script that enters the root once more"
    assert str(build.inner) in layer.argv
    assert f"the build runs in its root, {build.root}" in made.notes
    names = made.steps[1].actions[0]
    assert isinstance(names, Command)
    assert names.argv[-1] == f"{build.root}/etc/resolv.conf"
    assert not names.inside_root


@needs_mounts
def test_made_and_used_in_the_root_of_the_base(tmp_path: Path, perform: Perform) -> None:
    build = finished(tmp_path, "torch", rooted=True)
    write_wheel(tmp_path / "wheels", "tiny", "1.5", needs=("torch>=2",))
    folder = tmp_path / "p"
    made = plan(folder, build.python, "tiny")
    settings = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": (tmp_path / "wheels").as_uri(),
    }
    for step in made.steps:
        perform(step, folder=folder, added=settings)
    assert (folder / "base-constraints.txt").read_text() == "torch==2.6.0+mine\n"
    code = (
        "import importlib.metadata as m, sys, tiny;"
        "print(m.version('torch'), tiny.version, sys.prefix, open('/etc/only-here').read())"
    )
    sandbox = Sandbox(root=made.root)
    done = run(sandbox, made.python, "-c", code, folder=str(folder), **dict(made.variables))
    assert done.stdout.split(" ", 3) == ["2.6.0+mine", "1.5", f"{folder}/env", "in the root\n\n"]
    (site_packages,) = (build.folder / "env").glob("lib/python3*/site-packages")
    assert not list(site_packages.glob("tiny*")), "the base stays as it is"


@needs_mounts
def test_a_base_in_a_root_has_no_other_interpreter(tmp_path: Path) -> None:
    build = finished(tmp_path, "torch", rooted=True)
    with pytest.raises(UsageError, match=r"x\.python: the base runs in the root folder"):
        plan(tmp_path / "p", build.python, python="3.12")


@needs_mounts
def test_a_base_in_a_root_does_not_go_into_another_root(tmp_path: Path) -> None:
    build = finished(tmp_path, "torch", rooted=True)
    with pytest.raises(UsageError, match="has its own root folder") as caught:
        plan(tmp_path / "p", build.python, use="debian-root")
    assert "environment.use=venv" in caught.value.hint


def test_a_base_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    build = finished(tmp_path, "torch")
    build.python.write_text("#!/bin/sh\necho broken >&2\nexit 9\n")
    with pytest.raises(UsageError, match=r"x\.base: .*is not a Python interpreter"):
        plan(tmp_path / "p", build.python)


@needs_mounts
def test_a_whole_plan_against_a_named_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = finished(tmp_path, "torch", rooted=True)
    monkeypatch.setenv("TORCHYARD_HOME", str(build.home.folder))
    source = tmp_path / "ops"
    source.mkdir()
    request = build_request(
        "generic", "python", "", (f"source.folder.path={source}",), "build:torch"
    )
    assert request.settings[""]["environment.base"] == "build:torch", "kept for a later rebuild"
    planned = plan_build(request, BuildChoices(name="ops"))
    fetch, *others = (step for step in planned.plan.steps if step.component == "generic")
    assert fetch.root == "", "sources are fetched by this machine"
    assert {step.root for step in others} == {str(build.root)}
    assert planned.resolved.environment.base == str(build.python), "for the doctor"
    ops = build.home.build("ops")
    ops.folder.mkdir()
    script = write_runtime_files(planned.plan, ops)
    assert script is not None
    assert f"--root {build.root}" in script.read_text()
    with pytest.raises(UsageError, match="there is no build 'torhc'"):
        plan_build(build_request("generic", "python", "", (), "build:torhc"), BuildChoices())


def test_a_base_is_not_built_while_something_is_built_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = finished(tmp_path, "torch")
    monkeypatch.setenv("TORCHYARD_HOME", str(build.home.folder))
    source = tmp_path / "ops"
    source.mkdir()
    request = build_request(
        "generic", "python", "", (f"source.folder.path={source}",), "build:torch"
    )
    choices = BuildChoices(name="ops", doctor=False)
    planned = plan_build(request, choices)
    base = BuildFolder(folder=build.folder)
    refused: list[str] = []

    def try_to_change_the_base(event: BuildEvent) -> None:
        try:
            with exclusive_run_lock(base.lock_file):
                refused.append("")
        except NotAllowed as error:
            refused.append(error.what)

    with (
        exclusive_run_lock(base.lock_file),
        pytest.raises(NotAllowed, match="torch, the base of this build"),
    ):
        run_build(planned, choices, try_to_change_the_base)
    assert refused == [], "nothing was begun"
    run_build(planned, choices, try_to_change_the_base)
    assert set(refused) == {f"a build that uses {build.folder} as its base is running"}
    with exclusive_run_lock(base.lock_file):
        pass


def test_a_folder_as_base_is_found_before_anything_is_planned(tmp_path: Path) -> None:
    build = finished(tmp_path, "torch")
    request = build_request("generic", "python", "", (), str(build.folder))
    assert request.settings[""]["environment.base"] == str(build.python)
