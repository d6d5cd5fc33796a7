"""Locks of real recipe files and real sources."""

from __future__ import annotations

import os
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builds.plans import plan_of
from tests.builds.record_samples import make_record
from torchyard.builds.lockfile import (
    Lock,
    apply_lock,
    check_fetched,
    check_source,
    first_difference,
    locked_packages,
    locked_source,
    make_lock,
    read_lock,
    recipe_digest,
    recipe_facts,
    upstream_version,
    write_lock,
)
from torchyard.builds.plan import Component
from torchyard.builds.recipe import DebianSource, FolderSource, Recipe, SourceTable
from torchyard.builds.recipe_file import BuildRequest, ResolvedBuild, resolve
from torchyard.builds.record import (
    BuildRecord,
    ComponentRecord,
    PackageRecord,
    RecipeIdentity,
    SourceIdentity,
)
from torchyard.builds.sources import source_identity
from torchyard.errors import StepFailed, UsageError

RECIPE = """
name = "part"
version = "1.2"
builder = "cmake"
patches = ["fix.patch"]
[source.git]
url = "https://git.example.org/part"
ref = "v{version}"
overrides = { "third_party/inner" = "v3" }
[environment]
use = "venv"
[environment.venv]
packages = ["setuptools<80", "numpy"]
[options]
USE_FAST = true
BLAS = "OpenBLAS"
[variants.debug.options]
DEBUG = true
"""
GIT = SourceIdentity(
    kind="git",
    origin="https://git.example.org/part",
    version="v1.2",
    commit="a" * 40,
    submodules={"third_party/inner": "b" * 40, "third_party/other": "c" * 40},
    overridden=("third_party/inner",),
)


def resolved(folder: Path, text: str = RECIPE, **settings: Any) -> ResolvedBuild:
    (folder / "part.toml").write_text(text)
    if not (folder / "fix.patch").exists():
        (folder / "fix.patch").write_text("--- a\n+++ b\n")
    return resolve(
        BuildRequest(
            recipe="./part.toml", folder=folder, settings={"": settings} if settings else {}
        )
    )


def record_of(source: SourceIdentity | None) -> BuildRecord:
    return BuildRecord(
        name="mine",
        recipe=RecipeIdentity(
            name="./part.toml", version="1.2", settings={"": {"USE_FAST": False}}
        ),
        components=(ComponentRecord(name="part", source=source),),
        packages=(
            PackageRecord(name="numpy", version="2.1.0"),
            PackageRecord(name="setuptools", version="79.0.1"),
            PackageRecord(name="pip", version="25.0"),
            PackageRecord(name="part", version="1.2", origin="file:///w/part-1.2.whl"),
            PackageRecord(name="torch", version="2.6.0", origin="/base/site-packages"),
        ),
    )


def lock_of(build: ResolvedBuild, source: SourceIdentity = GIT) -> Lock:
    return make_lock(record_of(source), build)


def source_recipe(table: str) -> str:
    return f'name = "part"\nversion = "1.2"\nbuilder = "cmake"\n{table}\n'


def test_the_lock_file_round_trips(tmp_path: Path) -> None:
    lock = lock_of(resolved(tmp_path))
    path = tmp_path / "torchyard.lock"
    write_lock(path, lock)
    assert read_lock(path) == lock
    again = path.read_text()
    write_lock(path, read_lock(path))
    assert path.read_text() == again
    table = tomllib.loads(again)
    assert table["components"]["part"]["source"]["commit"] == "a" * 40
    assert table["components"]["part"]["recipe"]["options.BLAS"] == "OpenBLAS"
    assert table["recipe"]["settings"][""]["USE_FAST"] is False
    assert table["packages"] == {"numpy": "2.1.0", "setuptools": "79.0.1", "pip": "25.0"}


def test_applying_pins_commit_submodules_and_packages(tmp_path: Path) -> None:
    build = resolved(tmp_path)
    pinned = apply_lock(build, lock_of(build))
    git = pinned.components[0].source.git
    assert git is not None
    assert git.ref == "a" * 40
    assert git.url == "https://git.example.org/part"
    assert git.overrides == {"third_party/inner": "b" * 40}
    packages = pinned.environment.venv.packages
    assert packages == ("setuptools<80", "numpy", "numpy==2.1.0", "setuptools==79.0.1")
    assert pinned.recipe.source == pinned.components[0].source
    assert build.components[0].options == pinned.components[0].options


def test_installers_and_what_was_built_are_not_pinned(tmp_path: Path) -> None:
    assert locked_packages(lock_of(resolved(tmp_path))) == ("numpy==2.1.0", "setuptools==79.0.1")


@pytest.mark.parametrize("use", ["current", "debian-root"])
def test_packages_are_pinned_in_virtual_environments_only(tmp_path: Path, use: str) -> None:
    build = resolved(tmp_path, RECIPE.replace('use = "venv"', f'use = "{use}"'))
    pinned = apply_lock(build, lock_of(build))
    assert pinned.environment.venv.packages == ("setuptools<80", "numpy")


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('BLAS = "OpenBLAS"', 'BLAS = "MKL"', "options.BLAS"),
        ("USE_FAST = true\n", "", "options.USE_FAST"),
        ("[options]\n", "[options]\nUSE_CUDA = true\n", "options.USE_CUDA"),
        ('version = "1.2"', 'version = "1.3"', "version"),
        ("git.example.org", "git.example.com", "source.git.url"),
        ("v{version}", "main", "source.git.ref"),
        ("setuptools<80", "setuptools<82", "environment.venv"),
        ('builder = "cmake"', 'builder = "make"', "builder"),
        ("[options]\n", '[cmake]\nbuild-type = "Debug"\n[options]\n', "cmake.build-type"),
        (
            "[source.git]\n",
            '[source]\nuse = "tarball"\n[source.tarball]\nurl = "x"\nsha256 = "y"\n[source.git]\n',
            "source.use",
        ),
    ],
)
def test_a_changed_recipe_is_named_by_its_key(tmp_path: Path, old: str, new: str, key: str) -> None:
    lock = lock_of(resolved(tmp_path))
    assert old in RECIPE
    with pytest.raises(UsageError) as caught:
        apply_lock(resolved(tmp_path, RECIPE.replace(old, new)), lock)
    assert caught.value.what == f"part: {key} differs from the lock file"
    assert "torchyard build lock" in caught.value.hint


def test_a_setting_on_the_command_line_is_a_change_too(tmp_path: Path) -> None:
    lock = lock_of(resolved(tmp_path))
    with pytest.raises(UsageError, match=r"options\.BLAS differs from the lock file") as caught:
        apply_lock(resolved(tmp_path, BLAS="MKL"), lock)
    assert caught.value.why == "locked: OpenBLAS; now: MKL"


def test_the_content_of_a_patch_counts(tmp_path: Path) -> None:
    lock = lock_of(resolved(tmp_path))
    (tmp_path / "fix.patch").write_text("--- a\n+++ c\n")
    with pytest.raises(UsageError, match=r"patches\.fix\.patch differs from the lock file"):
        apply_lock(resolved(tmp_path), lock)
    (tmp_path / "fix.patch").unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        recipe_facts(replace(resolved(tmp_path).recipe, folder=str(tmp_path / "gone")))


def test_texts_estimates_and_checks_are_not_part_of_the_lock(tmp_path: Path) -> None:
    before = resolved(tmp_path).recipe
    after = resolved(
        tmp_path, 'summary = "x"\ndisk-gib = 9.0\n' + RECIPE + '[verify]\nimport-name = "p"\n'
    )
    assert recipe_digest(before) == recipe_digest(after.recipe)
    elsewhere = replace(before, environment=replace(before.environment, base="/home/x/.venv"))
    assert recipe_digest(before) == recipe_digest(elsewhere), "a path of another machine"


def test_the_first_difference() -> None:
    assert first_difference({"a": "1"}, {"a": "1"}) == ("", "", "")
    assert first_difference({"a": "1"}, {}) == ("a", "1", "not set")
    assert first_difference({}, {"b": ""}) == ("b", "not set", "")


def test_components_must_be_the_same(tmp_path: Path) -> None:
    build = resolved(tmp_path)
    lock = lock_of(build)
    more = replace(lock, components={**lock.components, "other": lock.components["part"]})
    with pytest.raises(UsageError, match="the lock file has the component 'other'"):
        apply_lock(build, more)
    with pytest.raises(UsageError, match="has no component 'part'"):
        locked_source(build.components[0], replace(lock, components={}))


def test_a_record_without_the_source(tmp_path: Path) -> None:
    build = resolved(tmp_path)
    with pytest.raises(UsageError, match="has no source for 'part'"):
        make_lock(record_of(None), build)
    with pytest.raises(UsageError, match="has no source for 'part'"):
        make_lock(make_record(), build)


def test_changes_in_no_commit_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be locked"):
        make_lock(record_of(replace(GIT, dirty=True)), resolved(tmp_path))


def pinned_source(tmp_path: Path, table: str, source: SourceIdentity) -> SourceTable:
    build = resolved(tmp_path, source_recipe(table))
    return locked_source(build.components[0], lock_of(build, source))


def test_an_sdist_gets_the_checksum_of_the_index(tmp_path: Path) -> None:
    source = SourceIdentity(kind="sdist", origin="sdist:part", version="1.2", sha256="d" * 64)
    table = '[source.sdist]\nname = "part"\nversion = "{version}"'
    sdist = pinned_source(tmp_path, table, source).sdist
    assert sdist is not None
    assert (sdist.version, sdist.sha256) == ("1.2", "d" * 64)


def test_a_debian_package_gets_its_version(tmp_path: Path) -> None:
    source = SourceIdentity(
        kind="debian", origin="debian:trixie/part", version="1.2-3", files={"a": "b"}
    )
    debian = pinned_source(
        tmp_path, '[source.debian]\npackage = "part"\nsuite = "trixie"', source
    ).debian
    assert debian is not None
    assert debian.version == "1.2-3"


def test_a_tarball_keeps_its_checksum(tmp_path: Path) -> None:
    source = SourceIdentity(kind="tarball", origin="https://x.example.org/a.tgz", sha256="e" * 64)
    table = (
        f'[source.tarball]\nurl = "https://x.example.org/{{version}}.tgz"\nsha256 = "{"e" * 64}"'
    )
    tarball = pinned_source(tmp_path, table, source).tarball
    assert tarball is not None
    assert tarball.url == "https://x.example.org/1.2.tgz"
    assert tarball.sha256 == "e" * 64


def test_a_folder_must_still_be_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "a.c").write_text("int a;\n")
    build = resolved(tmp_path, source_recipe(f'[source.folder]\npath = "{folder}"'))
    lock = lock_of(build, source_identity(build.components[0].source, folder))
    assert locked_source(build.components[0], lock) == build.components[0].source
    (folder / "a.c").write_text("int changed;\n")
    with pytest.raises(
        UsageError, match=r"source\.folder\.path: .* differs from the lock file"
    ) as caught:
        locked_source(build.components[0], lock)
    assert caught.value.why.startswith("digest: ")


def git(folder: Path, *arguments: str) -> str:
    identity = (
        "-c",
        "user.name=T",
        "-c",
        "user.email=t@example.org",
        "-c",
        "init.defaultBranch=main",
    )
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"},
    )
    return done.stdout.strip()


def test_a_branch_that_moved_on_is_built_as_it_was(tmp_path: Path) -> None:
    upstream, copy = tmp_path / "upstream", tmp_path / "copy"
    upstream.mkdir()
    git(upstream, "init", "-q")
    git(upstream, "commit", "-q", "--allow-empty", "-m", "first")
    first = git(upstream, "rev-parse", "HEAD")
    git(tmp_path, "clone", "-q", str(upstream), str(copy))
    build = resolved(tmp_path, source_recipe(f'[source.git]\nurl = "{upstream}"\nref = "main"'))
    lock = lock_of(build, source_identity(build.components[0].source, copy))

    git(upstream, "commit", "-q", "--allow-empty", "-m", "second")
    pinned = apply_lock(build, lock).components[0].source
    assert pinned.git is not None
    assert pinned.git.ref == first
    git(copy, "pull", "-q")
    moved = source_identity(build.components[0].source, copy)
    with pytest.raises(StepFailed) as caught:
        check_fetched("part", moved, lock)
    assert caught.value.why.startswith(f"commit: locked {first}, fetched ")
    git(copy, "checkout", "-q", pinned.git.ref)
    check_fetched("part", source_identity(pinned, copy), lock)


def test_every_file_of_a_fetched_source_is_compared(tmp_path: Path) -> None:
    source = SourceIdentity(
        kind="debian", origin="debian:trixie/part", version="1", files={"a.dsc": "1", "b.tar": "2"}
    )
    build = resolved(tmp_path, source_recipe('[source.debian]\npackage = "part"'))
    lock = lock_of(build, source)
    check_fetched("part", source, lock)
    for change in (
        {"files": {"a.dsc": "1", "b.tar": "3"}},
        {"files": {"a.dsc": "1"}},
        {"version": "2"},
    ):
        with pytest.raises(StepFailed):
            check_fetched("part", replace(source, **change), lock)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lock-version = ", "not valid TOML"),
        ("name = 'x'", "not a lock"),
        ("lock-version = 99\ntorchyard = '9.0'", r"newer Torchyard \(9\.0\)"),
        (
            "lock-version = 1\nname = 'x'\ncolour = 3\n[recipe]\nname = 'y'\n[components]",
            "unknown key 'colour'",
        ),
        ("lock-version = 1\nname = 'x'\n[components]", "'recipe' is missing"),
    ],
)
def test_files_that_are_no_lock(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.lock"
    path.write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        read_lock(path)
    assert str(path) in caught.value.what


def test_a_lock_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no lock"):
        read_lock(tmp_path / "x.lock")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        read_lock(tmp_path / "binary")


def test_a_shipped_stack_can_be_locked(tmp_path: Path) -> None:
    build = resolve(BuildRequest(recipe="arm-stack", machine="aarch64"))
    parts = tuple(
        ComponentRecord(
            name=one.name, source=replace(GIT, origin=f"https://git.example.org/{one.name}")
        )
        for one in build.components
    )
    record = make_record(components=parts)
    path = tmp_path / "arm.lock"
    write_lock(path, make_lock(record, build))
    pinned = apply_lock(build, read_lock(path))
    assert {one.source.git.ref for one in pinned.components if one.source.git} == {"a" * 40}


@pytest.mark.parametrize(
    ("debian", "upstream"),
    [
        ("2.6.0+dfsg-7", "2.6.0"),
        ("0.3.29+ds-3", "0.3.29"),
        ("0.21.0-3", "0.21.0"),
        ("1:24.11-1", "24.11"),
        ("3.7.2", "3.7.2"),
        ("2.0~rc1-1", "2.0"),
    ],
)
def test_the_projects_own_version(debian: str, upstream: str) -> None:
    assert upstream_version(debian) == upstream


def fetched(folder: Path, *, asked: str, package: str = "1.2.0+ds-1") -> Component:
    """A component whose Debian source lies there as the fetch step leaves it."""
    source = folder / "source"
    (source / "debian").mkdir(parents=True)
    (source / "debian/changelog").write_text(f"thing ({package}) trixie; urgency=medium\n")
    files = folder / "source.files"
    files.mkdir()
    (files / "thing.dsc").write_text(f"Source: thing\nVersion: {package}\n")
    table = SourceTable(debian=DebianSource(package="thing", suite="trixie"))
    part = plan_of(folder).components[0]
    return replace(part, recipe=Recipe(name="thing", version=asked, source=table))


@pytest.mark.parametrize("asked", ["1.2.0", "1.2", "v1.2.0", "", "main"])
def test_the_same_release_or_none(tmp_path: Path, asked: str) -> None:
    check_source(fetched(tmp_path, asked=asked), None)


def test_another_release_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(StepFailed) as caught:
        check_source(fetched(tmp_path, asked="2.13.0"), None)
    assert "release 1.2.0, not 2.13.0 as requested" in caught.value.what
    assert "--set part/version=1.2.0" in caught.value.hint


def test_other_sources_have_no_release_to_check(tmp_path: Path) -> None:
    part = fetched(tmp_path, asked="2.13.0")
    folder = SourceTable(folder=FolderSource(path=str(tmp_path)))
    check_source(replace(part, recipe=replace(part.recipe, source=folder)), None)
