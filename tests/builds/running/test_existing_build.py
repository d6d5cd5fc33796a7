"""Changes of an existing build: its request, its steps, cleaning."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.plans import plan_of, shell, step
from torchyard.builds.build_folders import BuildFolder, BuildsDirectory
from torchyard.builds.plan import Component, Plan
from torchyard.builds.recipe import BuilderKind, PythonTable, Recipe
from torchyard.builds.running.existing_build import (
    clean,
    clean_build,
    component_build_steps,
    dependent_builds,
    read_request,
    remove_build,
    requested_cache,
    select_components,
    used_lock_path,
)
from torchyard.errors import ResultsDamaged, UsageError


def home_with(folder: Path, text: str, name: str = "mine") -> BuildsDirectory:
    home = BuildsDirectory(folder=folder)
    path = home.build(name).request_file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return home


def test_the_request_is_read_back(tmp_path: Path) -> None:
    asked = {
        "name": "pytorch",
        "variant": "trimmed",
        "version": "2.6.0",
        "settings": {"": {"USE_X": 0}, "openblas": {"version": "0.3"}},
        "cache": "none",
        "of_tomorrow": True,
    }
    home = home_with(tmp_path, json.dumps(asked))
    request = read_request("mine", home)
    assert (request.recipe, request.variant, request.version) == ("pytorch", "trimmed", "2.6.0")
    assert request.settings == asked["settings"]
    assert requested_cache("mine", home) == "none"


def test_a_request_without_a_cache(tmp_path: Path) -> None:
    assert requested_cache("mine", home_with(tmp_path, '{"name": "x"}')) == "auto"


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', '{"variant": "no name"}'])
def test_a_damaged_request(tmp_path: Path, text: str) -> None:
    home = home_with(tmp_path, text)
    with pytest.raises(ResultsDamaged, match=r"request\.json cannot be read"):
        read_request("mine", home)


def test_no_such_build(tmp_path: Path) -> None:
    home = home_with(tmp_path, '{"name": "x"}', name="pytorch-2.6.0")
    with pytest.raises(UsageError, match=r"no build 'pytorch-2\.6'") as raised:
        read_request("pytorch-2.6", home)
    assert "did you mean 'pytorch-2.6.0'?" in raised.value.hint
    with pytest.raises(UsageError, match="is not a valid build name"):
        read_request("../../etc", home)


def test_the_used_lock_file(tmp_path: Path) -> None:
    home = home_with(tmp_path, '{"name": "x"}')
    assert used_lock_path("mine", home) == ""
    path = home.build("mine").used_lock_file
    path.touch()
    assert used_lock_path("mine", home) == str(path)


def component(folder: Path, name: str, builder: BuilderKind) -> Component:
    places = BuildFolder(folder=folder)
    return Component(
        name=name,
        recipe=Recipe(name=name, builder=builder, python=PythonTable(build_folder="_build")),
        source=str(folder / "sources" / name),
        tree=str(places.tree(name)),
        prefix=str(places.prefix),
        wheels=str(places.wheels),
        python="",
    )


def plan_with(folder: Path, **builders: BuilderKind) -> Plan:
    """A plan of several components, whose steps have all been done."""
    steps = [
        replace(step(what, shell("true")), name=f"{name}/{what}", component=name)
        for name in builders
        for what in ("fetch", "tree", "configure", "build", "verify")
    ]
    plan = replace(
        plan_of(folder, *steps),
        components=tuple(component(folder, name, kind) for name, kind in builders.items()),
    )
    places = BuildFolder(folder=folder)
    for item in steps:
        put(places.state(item.name))
    for part in plan.components:
        for path in ("source.c", "build/one.o", "_build/made.o"):
            put(Path(part.tree, path))
        for place in (places.dist(part.name) / "x.whl", places.report(part.name)):
            put(place)
        put(places.meter_log(part.name))
    put(places.prefix / "lib" / "x.so")
    return plan


def put(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_components_by_name(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, one="cmake", two="python")
    assert [part.name for part in select_components(plan, ())] == ["one", "two"]
    assert [part.name for part in select_components(plan, ("two",))] == ["two"]
    with pytest.raises(UsageError, match="no component 'tow'") as raised:
        select_components(plan, ("tow",))
    assert "did you mean 'two'?" in raised.value.hint


def test_steps_from_build_or_configure_on(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, one="cmake")
    assert component_build_steps(plan, "one", from_configure=False) == ("one/build", "one/verify")
    assert component_build_steps(plan, "one", from_configure=True)[0] == "one/configure"
    bare = replace(plan, steps=tuple(item for item in plan.steps if "/verify" in item.name))
    assert component_build_steps(bare, "one", from_configure=True) == ("one/verify",)


def left(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_clean_objects(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, one="cmake", two="python")
    clean(plan, BuildFolder(folder=tmp_path), plan.components, "objects")
    assert left(tmp_path) == {
        *("trees/one/source.c", "trees/one/_build/made.o"),
        *("trees/two/source.c", "trees/two/build/one.o"),
        *("steps/one-fetch.json", "steps/one-tree.json"),
        *("steps/two-fetch.json", "steps/two-tree.json"),
        "prefix/lib/x.so",
    }


def test_clean_trees(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, one="cmake")
    removed = clean(plan, BuildFolder(folder=tmp_path), plan.components, "tree")
    assert left(tmp_path) == {"steps/one-fetch.json", "prefix/lib/x.so"}
    assert removed[0] == BuildFolder(folder=tmp_path).state("one/tree"), "states go first"
    assert clean(plan, BuildFolder(folder=tmp_path), plan.components, "tree") == ()


@pytest.mark.parametrize("builder", ["make", "scons"])
def test_cleaning_objects_of_make_removes_only_its_own_tree(
    tmp_path: Path, builder: BuilderKind
) -> None:
    plan = plan_with(tmp_path, first=builder, second="cmake")
    clean(plan, BuildFolder(folder=tmp_path), plan.components, "objects")
    assert not (tmp_path / "trees/first").exists()
    assert (tmp_path / "trees/second/source.c").exists()
    assert (tmp_path / "steps/second-tree.json").exists()


def test_clean_one_component(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, one="cmake", two="cmake")
    before = {name for name in left(tmp_path) if "two" in name}
    clean(plan, BuildFolder(folder=tmp_path), plan.components[:1], "tree")
    assert {name for name in left(tmp_path) if "two" in name} == before


def built_against(folder: Path, name: str, base: str) -> BuildsDirectory:
    settings = {"": {"environment.base": base} if base else {}}
    return home_with(folder, json.dumps({"name": "x", "settings": settings}), name)


def test_a_whole_build_is_removed(tmp_path: Path) -> None:
    home = built_against(tmp_path, "one", "")
    built_against(tmp_path, "other", "/usr/bin/python3")
    assert remove_build("one", home) == (home.builds / "one",)
    assert not (home.builds / "one").exists()
    assert (home.builds / "other").exists()


def test_a_base_with_dependent_builds_is_not_removed(tmp_path: Path) -> None:
    home = built_against(tmp_path, "torch", "")
    built_against(tmp_path, "vision", "build:torch")
    built_against(tmp_path, "audio", f"{home.builds}/torch/bin/python")
    built_against(tmp_path, "ops", "build:torch-2")
    home_with(tmp_path, "{half", "damaged")
    assert dependent_builds("torch", home) == ("audio", "vision")
    with pytest.raises(UsageError, match="torch is the base of audio, vision") as caught:
        remove_build("torch", home)
    assert caught.value.hint == "first run: torchyard build clean audio --level all"
    assert (home.builds / "torch").exists()
    assert dependent_builds("vision", home) == ()


def test_a_build_whose_base_is_gone_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = built_against(tmp_path, "vision", "build:torch")
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    assert clean_build("vision", (), "all") == (home.builds / "vision",)
    with pytest.raises(UsageError, match="there is no build 'vision'"):
        clean_build("vision", (), "all")
    assert not (home.builds / "vision").exists(), "asking makes no folder"


def test_a_link_in_the_place_of_a_tree_is_not_followed(tmp_path: Path) -> None:
    plan = plan_with(tmp_path / "x", one="cmake")
    outside = tmp_path / "outside"
    put(outside / "mine")
    import shutil

    shutil.rmtree(tmp_path / "x/trees/one")
    (tmp_path / "x/trees/one").symlink_to(outside)
    clean(plan, BuildFolder(folder=tmp_path / "x"), plan.components, "tree")
    assert (outside / "mine").exists()
    assert not (tmp_path / "x/trees/one").is_symlink()
