"""Packages of EasyBuild and Spack: valid files with the values of the plan, whatever these contain."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builds.export.sample_plans import FACTS, REQUESTS, hand_plan, shipped_plan
from torchyard.builds.export import export_plan
from torchyard.builds.plan import Component, Plan
from torchyard.builds.recipe import Recipe
from torchyard.core.records import decode
from torchyard.errors import UsageError

AWKWARD = "a 'b' \"c\" $HOME `id` $(id) \\ ; # é"
"""A value in which every quoting mistake shows."""


def easyconfig(text: str) -> dict[str, Any]:
    values: dict[str, Any] = {"SYSTEM": "system", "PYPI_SOURCE": "the index"}
    exec(compile(text, "easyconfig", "exec"), values)  # noqa: S102
    return values


class Recorded:
    """What a package of Spack declares."""

    def __init__(self) -> None:
        self.versions: list[tuple[str, dict[str, Any]]] = []
        self.needs: list[str] = []
        self.variables: dict[str, str] = {}

    def set(self, name: str, value: str) -> None:
        self.variables[name] = value


def spack_package(text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Recorded]:
    recorded = Recorded()
    module = types.ModuleType("spack.package")
    bases = ("CMakePackage", "PythonPackage", "SConsPackage", "MakefilePackage")
    for base in bases:
        setattr(module, base, type(base, (), {}))
    module.version = lambda name, **rest: recorded.versions.append((name, rest))  # type: ignore[attr-defined]
    module.depends_on = lambda name, **_: recorded.needs.append(name)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spack", types.ModuleType("spack"))
    monkeypatch.setitem(sys.modules, "spack.package", module)
    values: dict[str, Any] = {}
    exec(compile(text, "package", "exec"), values)  # noqa: S102
    (package,) = [
        value
        for name, value in values.items()
        if isinstance(value, type) and name not in bases and value.__module__ == "builtins"
    ]
    return package(), recorded


def recipe(**values: Any) -> Recipe:
    table = {
        "name": "small",
        "version": "1.2",
        "source": {
            "tarball": {"url": "/src/small-1.2.tar.gz", "sha256": "0" * 64},
        },
        **values,
    }
    return decode(Recipe, table, where="small")


def plan_of(*recipes: Recipe, tmp_path: Path, **needs: tuple[str, ...]) -> Plan:
    folder = tmp_path / "builds" / "small"
    components = tuple(
        Component(
            name=one.name,
            recipe=one,
            source="/src",
            tree=f"{folder}/trees/{one.name}",
            prefix=f"{folder}/prefix",
            wheels=f"{folder}/wheels",
            python="",
            needs=needs.get(one.name, ()),
        )
        for one in recipes
    )
    return replace(hand_plan(folder=folder), components=components)


@pytest.mark.parametrize("form", ["easybuild", "spack"])
@pytest.mark.parametrize("name", sorted(set(REQUESTS) - {"dev-stack"}))
def test_shipped_recipes_become_valid_packages(
    name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = shipped_plan(name, tmp_path)
    files = export_plan(plan, form, FACTS)
    assert len(files) == len(plan.components)
    for file, part in zip(files, plan.components, strict=True):
        assert plan.folder not in file.text
        if form == "easybuild":
            values = easyconfig(file.text)
            assert values["version"] == part.recipe.version
            assert [one[0] for one in values["dependencies"]] == list(part.needs)
            suffix = values["versionsuffix"]
            assert file.name == f"{values['name']}-{values['version']}{suffix}.eb"
        else:
            _, recorded = spack_package(file.text, monkeypatch)
            assert [version for version, _ in recorded.versions] == [part.recipe.version]


@pytest.mark.parametrize("builder", ["python", "cmake", "scons"])
def test_values_reach_the_build_unchanged(
    builder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(
        recipe(
            builder=builder,
            summary=f'{AWKWARD}\n"""x',
            options={"AWKWARD": AWKWARD},
            environment={"use": "current", "variables": {"MINE": AWKWARD}},
        ),
        tmp_path=tmp_path,
    )
    values = easyconfig(export_plan(plan, "easybuild", FACTS)[0].text)
    prefix = values.get("preconfigopts") or values.get("preinstallopts") or values["prebuildopts"]
    words = values.get("configopts") or values.get("buildopts") or ""
    script = f'{prefix} printf "%s\\n" "$MINE" "$AWKWARD"; printf "%s\\n" {words}'
    said = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=True, env={"PATH": "/bin"}
    ).stdout
    assert said.splitlines()[0] == AWKWARD
    assert AWKWARD in said.split("\n", 1)[1]
    package, recorded = spack_package(export_plan(plan, "spack", FACTS)[0].text, monkeypatch)
    package.setup_build_environment(recorded)
    assert recorded.variables["MINE"] == AWKWARD
    given = {"cmake": "cmake_args", "scons": "build_args"}.get(builder)
    if given is None:
        assert recorded.variables["AWKWARD"] == AWKWARD
    else:
        arguments = [] if builder == "cmake" else ["spec", "prefix"]
        assert getattr(package, given)(*arguments)[-1].endswith(f"AWKWARD={AWKWARD}")


def test_folders_of_other_components_become_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = f"{tmp_path}/builds/small/trees/kernels"
    prefix = f"{tmp_path}/builds/small/prefix"
    variables = {"KERNELS": tree, "BLAS": f"{prefix}/lib", "OWN": f"{tmp_path}/builds/small/env"}
    plan = plan_of(
        recipe(name="kernels", builder="scons"),
        recipe(name="blas-library", builder="cmake"),
        recipe(builder="cmake", environment={"use": "current", "variables": variables}),
        tmp_path=tmp_path,
        small=("kernels", "blas-library"),
    )
    *_, file = export_plan(plan, "easybuild", FACTS)
    values = easyconfig(file.text)
    assert 'KERNELS="$EBROOTKERNELS"' in values["preconfigopts"]
    assert 'BLAS="$EBROOTBLASMINLIBRARY/lib"' in values["preconfigopts"]
    assert "# Missing: set OWN" in file.text
    *_, file = export_plan(plan, "spack", FACTS)
    package, recorded = spack_package(file.text, monkeypatch)
    package.spec = {
        name: types.SimpleNamespace(prefix=f"/at/{name}") for name in ("kernels", "blas-library")
    }
    package.setup_build_environment(recorded)
    assert recorded.variables == {"KERNELS": "/at/kernels", "BLAS": "/at/blas-library/lib"}
    assert recorded.needs[-2:] == ["kernels@1.2", "blas-library@1.2"]


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("source", "easybuild", "spack"),
    [
        (
            {"tarball": {"url": "https://x.org/small-1.2.tar.gz", "sha256": "1" * 64}},
            {"sources": ["small-1.2.tar.gz"], "checksums": ["1" * 64]},
            {"url": "https://x.org/small-1.2.tar.gz", "sha256": "1" * 64},
        ),
        (
            {"sdist": {"name": "small", "version": "1.2", "sha256": "2" * 64}},
            {"sources": ["small-1.2.tar.gz"], "checksums": ["2" * 64]},
            {"sha256": "2" * 64},
        ),
        (
            {"git": {"url": "https://x.org/a/small.git", "ref": COMMIT}},
            {"git_config": {"commit": COMMIT, "repo_name": "small"}},
            {"commit": COMMIT, "submodules": True},
        ),
        (
            {
                "use": "git",
                "git": {"url": "https://x.org/a/small", "ref": "v1"},
                "debian": {"package": "s"},
            },
            {"git_config": {"tag": "v1", "url": "https://x.org/a"}},
            {"tag": "v1", "submodules": True},
        ),
    ],
    ids=["tarball", "sdist", "commit", "tag"],
)
def test_the_source_and_its_checksum_are_those_of_the_plan(
    source: dict[str, Any],
    easybuild: dict[str, Any],
    spack: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {"files": ["lib/libsmall.so", "lib/*.a", "/tmp/other"]}
    plan = plan_of(recipe(builder="cmake", source=source, verify=files), tmp_path=tmp_path)
    values = easyconfig(export_plan(plan, "easybuild", FACTS)[0].text)
    if "git_config" in easybuild:
        (entry,) = values["sources"]
        assert easybuild["git_config"].items() <= entry["git_config"].items()
        assert ("commit" in entry["git_config"]) == ("commit" in spack)
    else:
        assert easybuild.items() <= values.items()
    assert values["sanity_check_paths"] == {"files": ["lib/libsmall.so"], "dirs": []}
    package, recorded = spack_package(export_plan(plan, "spack", FACTS)[0].text, monkeypatch)
    assert recorded.versions == [("1.2", spack)]
    assert package.sanity_check_is_file == ["lib/libsmall.so"]
    assert recorded.needs[:2] == ["c", "cxx"]


def test_a_prefix_that_two_components_share_is_left_open(tmp_path: Path) -> None:
    variables = {"BLAS": f"{tmp_path}/builds/small/prefix"}
    plan = plan_of(
        recipe(name="one", builder="cmake"),
        recipe(name="two", builder="cmake"),
        recipe(builder="cmake", environment={"use": "current", "variables": variables}),
        tmp_path=tmp_path,
        small=("one", "two"),
    )
    *_, file = export_plan(plan, "easybuild", FACTS)
    assert "# Missing: set BLAS" in file.text
    assert "BLAS" not in easyconfig(file.text)["preconfigopts"]


@pytest.mark.parametrize(
    "values",
    [{"name": "x'); import os #"}, {"version": "1\n2"}, {"builder": "none"}],
    ids=["name", "version", "builder"],
)
def test_what_cannot_be_a_package_is_refused(values: dict[str, Any], tmp_path: Path) -> None:
    plan = plan_of(recipe(**values), tmp_path=tmp_path)
    for form in ("easybuild", "spack"):
        with pytest.raises(UsageError, match="cannot be exported as a package"):
            export_plan(plan, form, FACTS)


@pytest.mark.skipif(shutil.which("eb") is None, reason="needs EasyBuild and a modules tool")
def test_easybuild_reads_the_files_of_a_stack(tmp_path: Path) -> None:
    for file in export_plan(shipped_plan("arm-stack", tmp_path), "easybuild", FACTS):
        (tmp_path / file.name).write_text(file.text)
    command = ["eb", *map(str, tmp_path.glob("*.eb")), "--dry-run", f"--robot={tmp_path}"]
    command += ["--allow-use-as-root-and-accept-consequences", f"--prefix={tmp_path / 'eb'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(module: pytorch/" in done.stdout
