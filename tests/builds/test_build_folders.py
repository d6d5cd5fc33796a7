"""Folders of builds: safe names, one folder for each source description."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.builds.build_folders import BuildFolder, BuildsDirectory, check_build_name
from torchyard.builds.recipe import GitSource, Recipe, SourceTable
from torchyard.errors import UsageError

HOME = BuildsDirectory(folder=Path("/yard"))
RECIPE = Recipe(
    name="pytorch",
    version="2.6.0",
    source=SourceTable(git=GitSource(url="https://example.org/x", ref="v2.6.0")),
)


@pytest.mark.parametrize("name", ["a", "pytorch-2.6.0-cpu_arm", "A+b", "0", "x" * 100])
def test_names_of_builds(name: str) -> None:
    assert check_build_name(name, where="--name") == name
    assert HOME.build(name).folder == Path("/yard/builds") / name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "-x", ".x", "a b", "a\n", "ü", "x" * 101, "a\0b", "$x"]
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        HOME.build(name)
    assert raised.value.what.startswith("--name: ")
    assert raised.value.hint


@given(st.text(max_size=30))
def test_a_build_never_leaves_the_builds_folder(name: str) -> None:
    try:
        folder = HOME.build(name).folder
    except UsageError:
        return
    assert folder.parent == HOME.builds
    assert folder.name == name


def test_a_source_has_a_folder_for_each_description() -> None:
    place = HOME.source(RECIPE)
    assert place.parent == Path("/yard/sources")
    assert place.name.startswith("pytorch-2.6.0-")
    assert HOME.source(replace(RECIPE, options={"USE_CUDA": False}, variant="x")) == place
    assert RECIPE.source.git is not None
    other = replace(RECIPE, source=SourceTable(git=replace(RECIPE.source.git, ref="main")))
    assert HOME.source(other) != place


@given(st.text(max_size=40))
def test_an_odd_version_stays_one_folder(version: str) -> None:
    place = HOME.source(replace(RECIPE, version=version))
    assert place.parent == Path("/yard/sources")
    assert "\0" not in place.name


def test_files_of_a_build_are_below_it_and_apart() -> None:
    folder = BuildFolder(folder=Path("/yard/builds/x"))
    of_all = [
        *(folder.prefix, folder.wheels, folder.meter, folder.plan_file, folder.request_file),
        *(folder.used_lock_file, folder.record_file, folder.freeze_file, folder.lock_file),
    ]
    of_parts = [
        place(name)
        for name in ("one", "two")
        for place in (folder.tree, folder.listed, folder.dist, folder.report, folder.meter_log)
    ]
    of_steps = [
        place(name)
        for name in ("one/build", "two/build", "one/verify")
        for place in (folder.log, folder.state)
    ]
    places = [*of_all, *of_parts, *of_steps]
    assert len(set(places)) == len(places)
    assert all(place.is_relative_to(folder.folder) for place in places)


def test_the_results_directory_follows_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    home = BuildsDirectory.default()
    assert home.folder == tmp_path
    for place in (home.builds, home.downloads, home.history, home.tools):
        assert place.parent == tmp_path


def test_what_a_root_shows(tmp_path: Path) -> None:
    folder = BuildsDirectory(folder=tmp_path / "yard").build("vision")
    own = str(folder.folder / "root")
    assert folder.shown_in(own) == (str(tmp_path / "yard"), str(folder.folder))
    theirs = "/elsewhere/builds/torch/root"
    assert folder.shown_in(theirs) == (str(tmp_path / "yard"), "/elsewhere/builds/torch")
