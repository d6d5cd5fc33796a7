"""What becomes of a plan inside an image: base, packages, programs, folders, what it is given."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builds.export.sample_plans import (
    FACTS,
    commands_of,
    hand_component,
    hand_plan,
    shipped_plan,
    small_plan,
    small_project,
)
from torchyard.builds.build_folders import BuildsDirectory
from torchyard.builds.environments.model import SYSTEM_PATH
from torchyard.builds.export import export_plan
from torchyard.builds.export.image import image_of, source_list_statements
from torchyard.builds.export.shell import ExportFacts
from torchyard.builds.plan import Command, Plan
from torchyard.builds.planner import make_plan
from torchyard.builds.recipe import (
    GitSource,
    MakeTable,
    PythonTable,
    Recipe,
    SourceTable,
    TarballSource,
)
from torchyard.builds.recipe_file import BuildRequest
from torchyard.errors import UsageError


def with_python(version: str) -> Plan:
    """A plan whose environment is made with that Python."""
    folder = "/yard/builds/x"
    return hand_plan(
        Command(argv=("/usr/bin/python3", "-m", "venv", f"{folder}/env")),
        folder=folder,
        component=hand_component(folder, python=f"{folder}/env/bin/python"),
        inputs=(("python", f"cpython {version}"),),
    )


@pytest.mark.parametrize(
    ("version", "base", "installs"),
    [
        ("3.11.2", "debian:bookworm-slim", True),
        ("3.13.5", "debian:trixie-slim", True),
        ("3.12.3", "python:3.12-slim-trixie", False),
        ("", "debian:trixie-slim", True),
    ],
)
def test_the_base_has_the_python_of_the_plan(version: str, base: str, installs: bool) -> None:
    image = image_of(with_python(version), FACTS)
    assert image.base.name == base
    assert ("python3-venv" in image.packages) is installs
    assert image.base.why


@pytest.mark.parametrize(
    ("name", "base", "gpu"),
    [
        ("trimmed-root", "debian:trixie-slim", ""),
        ("cuda-venv", "nvidia/cuda:", "cuda"),
        ("cuda-conda", "debian:trixie-slim", "cuda"),
        ("rocm-conda", "rocm/dev-ubuntu", "rocm"),
        ("arm-stack", "python:3.12-slim-trixie", ""),
    ],
)
def test_the_base_fits_the_environment(name: str, base: str, gpu: str, tmp_path: Path) -> None:
    image = image_of(shipped_plan(name, tmp_path), FACTS)
    assert image.base.name.startswith(base)
    assert image.gpu == gpu


def test_a_named_version_of_python_comes_from_its_image() -> None:
    folder = "/yard/builds/x"
    plan = hand_plan(
        Command(argv=("python3.10", "-m", "venv", f"{folder}/env")),
        folder=folder,
        component=hand_component(folder, python=f"{folder}/env/bin/python"),
        inputs=(("python", " "),),
    )
    image = image_of(plan, FACTS)
    assert image.base.name == "python:3.10-slim-trixie"
    assert commands_of(image.plan)[0].argv[0] == "python3"


def test_a_named_base_is_taken(tmp_path: Path) -> None:
    plan = shipped_plan("cuda-venv", tmp_path)
    facts = replace(FACTS, base_image="example.org/mine:1")
    (file,) = export_plan(plan, "dockerfile", facts)
    assert file.text.count("FROM example.org/mine:1 AS ") == 2
    (file,) = export_plan(plan, "apptainer", facts)
    assert "From: example.org/mine:1\n" in file.text


@pytest.mark.parametrize("form", ["dockerfile", "apptainer"])
@pytest.mark.parametrize("name", ["a b", "x\nRUN evil", "x # y", "-x y"])
def test_a_base_that_names_no_image_is_an_error(name: str, form: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not the name of an image"):
        export_plan(shipped_plan("cuda-venv", tmp_path), form, replace(FACTS, base_image=name))


def test_the_root_folder_is_gone(tmp_path: Path) -> None:
    plan = shipped_plan("trimmed-root", tmp_path)
    image = image_of(plan, FACTS)
    assert image.rooted
    assert image.source_packages, "build dependencies need them"
    assert not any(step.root for step in image.plan.steps)
    assert "environment/root" not in {step.name for step in image.plan.steps}
    words = [word for command in commands_of(image.plan) for word in command.argv]
    assert not any("/root/" in word or word.endswith("trimmed/root") for word in words)
    assert any("build-dep" in command.argv for command in commands_of(image.plan))
    assert "dpkg-dev" in image.packages
    makes = [command.argv for command in commands_of(image.plan) if "venv" in command.argv]
    assert makes[0][0] == "/usr/bin/python3", "the root's own"


SOURCES = {
    "debian.sources": "Types: deb\nURIs: http://deb.debian.org/debian\nSuites: trixie\nComponents: main\n",
    "sources.list": "deb http://deb.debian.org/debian trixie main\n",
}


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_an_image_has_the_archive_areas_of_its_root_folder(tmp_path: Path, name: str) -> None:
    request = BuildRequest(
        recipe="pytorch",
        variant="cuda",
        version="2.6.0",
        settings={"": {"source.use": "debian", "environment.use": "debian-root"}},
        machine="x86_64",
    )
    home = BuildsDirectory(folder=tmp_path / "home")
    image = image_of(make_plan(request, home=home, environ={"PATH": SYSTEM_PATH}), FACTS)
    assert image.archive_areas == ("main", "contrib", "non-free")
    apt = tmp_path / "apt"
    (apt / "sources.list.d").mkdir(parents=True)
    file = apt / name if name == "sources.list" else apt / "sources.list.d" / name
    file.write_text(SOURCES[name])
    image = replace(image, source_packages=True)
    script = "\n".join(source_list_statements(image)).replace("/etc/apt", str(apt))
    subprocess.run(["sh", "-euc", script], check=True)
    lists = "".join(path.read_text() for path in sorted(apt.rglob("*")) if path.is_file())
    if name == "sources.list":
        line = "http://deb.debian.org/debian trixie main contrib non-free\n"
        assert lists == f"deb {line}deb-src {line}"
    else:
        assert "Types: deb deb-src\n" in lists
        assert "Components: main contrib non-free\n" in lists


def test_home_is_that_of_the_image(tmp_path: Path) -> None:
    for step in image_of(shipped_plan("arm-stack", tmp_path), FACTS).plan.steps:
        assert dict(step.variables)["HOME"] == "/root"


def test_uv_becomes_venv_and_pip() -> None:
    folder = "/yard/builds/x"
    python = f"{folder}/env/bin/python"
    plan = hand_plan(
        Command(argv=("/home/me/bin/uv", "venv", "--seed", "--python", "/p", f"{folder}/env")),
        Command(argv=("/home/me/bin/uv", "pip", "install", "--python", python, "--", "numpy")),
        folder=folder,
        component=hand_component(folder, python=python),
    )
    moved = "/opt/torchyard/by-hand"
    first, second = commands_of(image_of(plan, FACTS).plan)
    assert first.argv == ("python3", "-m", "venv", "--clear", "--", f"{moved}/env")
    assert second.argv == (f"{moved}/env/bin/python", "-m", "pip", "install", "--", "numpy")


@pytest.mark.parametrize(
    ("program", "place"),
    [
        ("micromamba", "/usr/local/bin/micromamba"),
        ("conda", "/opt/conda/bin/conda"),
        ("mamba", "/opt/conda/bin/mamba"),
        ("pixi", "/usr/local/bin/pixi"),
    ],
)
def test_the_conda_program_is_installed_or_named(program: str, place: str) -> None:
    folder = "/yard/builds/x"
    component = hand_component(folder, python=f"{folder}/env/bin/python")
    create = Command(argv=(f"/home/me/{program}", "create"))
    plan = hand_plan(create, folder=folder, component=component)
    image = image_of(plan, FACTS)
    assert image.conda == program
    assert commands_of(image.plan)[0].argv[0] == place
    (file,) = export_plan(plan, "dockerfile", FACTS)
    assert f"# Assumed: {program} can be downloaded here" in file.text
    named = image_of(plan, replace(FACTS, base_image="x", conda_program="/bin/mine"))
    assert named.conda == ""
    assert commands_of(named.plan)[0].argv[0] == "/bin/mine"


def planned(tmp_path: Path, **settings: Any) -> Plan:
    project = small_project(tmp_path / "project")
    request = BuildRequest(
        recipe="generic",
        variant="python",
        settings={"": {"source.folder.path": str(project), **settings}},
    )
    return make_plan(
        request, home=BuildsDirectory(folder=Path("/yard")), name="x", environ={"PATH": ""}
    )


def test_a_plan_over_a_base_of_this_machine_cannot_become_an_image(tmp_path: Path) -> None:
    import sys

    plan = planned(tmp_path, **{"environment.base": sys.executable})
    with pytest.raises(UsageError, match="needs packages of this machine") as caught:
        export_plan(plan, "dockerfile", FACTS)
    assert "export a script" in caught.value.hint
    assert export_plan(plan, "script", FACTS)


def test_a_plan_with_an_interpreter_of_this_machine_cannot_become_an_image() -> None:
    plan = hand_plan(component=hand_component("/yard/builds/x", python="/home/me/env/bin/python"))
    with pytest.raises(UsageError, match="needs /home/me/env/bin/python of this machine"):
        image_of(plan, FACTS)
    system = hand_plan(component=hand_component("/yard/builds/x", python="/usr/bin/python3"))
    assert image_of(system, FACTS).python == "/usr/bin/python3"


def test_folders_of_this_machine_are_copied_in(tmp_path: Path) -> None:
    project = small_project(tmp_path / "it's here")
    plan = small_plan(project, Path("/yard"))
    (item,) = image_of(plan, FACTS).inputs
    assert item.path == str(project)
    assert item.name == "generic-source"
    (docker,) = export_plan(plan, "dockerfile", FACTS)
    copy = 'COPY ["local/generic-source", "/opt/torchyard/small/local/generic-source"]'
    assert copy in docker.text
    run = docker.text.partition("\nRUN ")[2]
    assert str(project) not in run
    assert "cp -aT -- '" in docker.text.partition("\nRUN ")[0], "how to bring it beside the file"
    (apptainer,) = export_plan(plan, "apptainer", FACTS)
    assert "%files\n    local/generic-source /opt/torchyard/small/local/" in apptainer.text


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (SourceTable(tarball=TarballSource(url="/a/b c.tar.gz", sha256="")), "thing-b_c.tar.gz"),
        (SourceTable(git=GitSource(url="file:///a/repo")), "thing-source"),
        (SourceTable(git=GitSource(url="https://example.org/repo")), ""),
        (SourceTable(git=GitSource(url="git@example.org:repo")), ""),
        (SourceTable(use="git", git=GitSource(url="~/repo"), tarball=None), "thing-source"),
    ],
)
def test_local_archives_and_repositories_are_copied_in(source: SourceTable, name: str) -> None:
    component = hand_component("/yard/builds/x", Recipe(name="thing", source=source))
    image = image_of(hand_plan(component=component), FACTS)
    assert [item.name for item in image.inputs] == ([name] if name else [])


def test_patches_are_copied_in() -> None:
    recipe = Recipe(name="thing", patches=("a.patch", "b.patch"), folder="/recipes")
    component = hand_component("/yard/builds/x", recipe)
    patch = Command(argv=("patch", "-p1", "-i", "/recipes/b.patch"))
    image = image_of(hand_plan(patch, folder="/yard/builds/x", component=component), FACTS)
    assert [item.path for item in image.inputs] == ["/recipes/a.patch", "/recipes/b.patch"]
    moved = "/opt/torchyard/by-hand/local/thing-2.patch"
    assert commands_of(image.plan)[0].argv[-1] == moved


def test_what_is_kept_for_the_users_of_the_result(tmp_path: Path) -> None:
    image = image_of(shipped_plan("arm-stack", tmp_path), FACTS)
    folder = "/opt/torchyard/arm-stack-2.5.0"
    assert set(image.kept) == {
        f"{folder}/trees/arm-compute-library",
        f"{folder}/prefix",
        f"{folder}/env",
        f"{folder}/freeze.txt",
        f"{folder}/wheels",
    }
    assert f"{folder}/trees/pytorch" in image.not_kept
    assert not set(image.kept) & set(image.not_kept)
    variables = dict(image.variables)
    assert variables["PATH"].startswith(f"{folder}/prefix/bin:{folder}/env/bin:")
    assert variables["LD_LIBRARY_PATH"] == f"{folder}/prefix/lib"
    assert "CPATH" not in variables


@pytest.mark.parametrize(
    ("recipe", "kept"),
    [
        (Recipe(name="thing", builder="make"), "prefix"),
        (Recipe(name="thing", builder="make", make=MakeTable(install_targets=())), "trees/thing"),
        (Recipe(name="thing", builder="none"), "trees/thing"),
        (
            Recipe(name="thing", builder="python", python=PythonTable(install="editable")),
            "trees/thing",
        ),
    ],
)
def test_what_is_kept_follows_the_builder(recipe: Recipe, kept: str) -> None:
    plan = hand_plan(component=hand_component("/yard/builds/by-hand", recipe))
    plan = replace(plan, folder="/yard/builds/by-hand")
    assert image_of(plan, FACTS).kept[0] == f"/opt/torchyard/by-hand/{kept}"


def test_another_place_in_the_image() -> None:
    facts = ExportFacts(home="/yard", image_folder="/srv/yard")
    image = image_of(hand_plan(folder="/yard/builds/x"), facts)
    assert image.plan.folder == "/srv/yard/by-hand"
    assert image.plan.components[0].source == "/srv/yard/by-hand/sources/thing-1.0"


def test_smoke_tests_wait_for_a_gpu(tmp_path: Path) -> None:
    plan = shipped_plan("cuda-venv", tmp_path)
    (docker,) = export_plan(plan, "dockerfile", FACTS)
    steps, _, check = docker.text.partition("# There is no GPU while an image is built")
    assert "torch.cuda.is_available()" not in steps
    assert "import torch" in steps
    assert "torch.cuda.is_available()" in check
    (apptainer,) = export_plan(plan, "apptainer", FACTS)
    post, _, test = apptainer.text.partition("%test\n")
    assert "torch.cuda.is_available()" not in post
    assert "[ -e /dev/nvidiactl ] || " in test
    assert "torch.cuda.is_available()" in test


def test_an_arm_image_with_a_chosen_gcc_and_an_allocator(tmp_path: Path) -> None:
    settings = {"": {"environment.gcc": "14"}}
    request = BuildRequest(recipe="arm-stack", settings=settings, machine="aarch64")
    home = BuildsDirectory(folder=tmp_path)
    plan = make_plan(request, home=home, environ={"PATH": ""})
    (file,) = export_plan(plan, "dockerfile", replace(FACTS, home=str(tmp_path)))
    build, runtime = file.text.split(" AS runtime")
    assert {"gcc-14", "g++-14", "libgoogle-perftools-dev"} <= set(build.split())
    assert "trixie" in build, "bookworm has no gcc 14"
    assert "libgoogle-perftools-dev" in runtime
    assert 'ENV CC="gcc-14"' in build
