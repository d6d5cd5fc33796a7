"""From a named recipe to its components: order, settings for each, mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchyard.builds.recipe_file import BuildRequest, resolve, shipped_recipes
from torchyard.errors import UsageError

SOURCE = "[source.folder]\npath = '/'\n"


class Shelf:
    """Recipe files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, name: str, text: str = "") -> str:
        (self.folder / f"{name}.toml").write_text(text if "components" in text else text + SOURCE)
        return f"./{name}.toml"

    def stack(self, *parts: str, more: str = "") -> str:
        return self.put("stack", more + "".join(f"[[components]]\n{part}\n" for part in parts))

    def names(self, recipe: str, **settings: dict[str, Any]) -> list[str]:
        return [part.name for part in resolve(self.request(recipe, **settings)).components]

    def request(self, recipe: str, **settings: dict[str, Any]) -> BuildRequest:
        return BuildRequest(recipe=recipe, settings=settings, folder=self.folder)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_a_recipe_is_its_own_component(shelf: Shelf) -> None:
    build = resolve(shelf.request(shelf.put("one", "version = '1'\n")))
    assert [part.name for part in build.components] == ["one"]
    assert build.recipe == build.components[0]
    assert build.recipe.folder == str(shelf.folder.resolve())


def test_each_stands_behind_those_it_needs(shelf: Shelf) -> None:
    for name, needs in (("a", "['b', 'c']"), ("b", "['c']"), ("c", "[]"), ("d", "[]")):
        shelf.put(name, f"needs = {needs}\n")
    parts = [f"recipe = './{name}.toml'" for name in "adbc"]
    assert shelf.names(shelf.stack(*parts)) == ["c", "b", "a", "d"]


def test_needs_of_a_stack_are_added_to_those_of_the_recipe(shelf: Shelf) -> None:
    for name in "abc":
        shelf.put(name, "needs = ['c']\n" if name == "a" else "")
    stack = shelf.stack(
        "recipe = './a.toml'\nneeds = ['b', 'c']", "recipe = './b.toml'", "recipe = './c.toml'"
    )
    build = resolve(shelf.request(stack))
    assert [part.name for part in build.components] == ["c", "b", "a"]
    assert build.components[-1].needs == ("c", "b")


def test_needed_recipes_that_are_shipped_come_by_themselves(shelf: Shelf) -> None:
    recipe = shelf.put("mine", "needs = ['openblas']\n")
    assert shelf.names(recipe) == ["openblas", "mine"]
    build = resolve(shelf.request(recipe, openblas={"USE_OPENMP": 0}))
    assert build.components[0].options["USE_OPENMP"] == 0


def test_settings_reach_the_component_they_name(shelf: Shelf) -> None:
    for name in "ab":
        shelf.put(name, "[options]\nX = 0\n")
    stack = shelf.stack(
        "recipe = './a.toml'\nversion = '3'\nsettings = { X = 1, Y = 1 }", "recipe = './b.toml'"
    )
    build = resolve(shelf.request(stack, a={"X": 2}, b={"version": "5"}))
    first, second = build.components
    assert (first.version, first.options) == ("3", {"X": 2, "Y": 1})
    assert (second.version, second.options) == ("5", {"X": 0})


def test_settings_without_a_name_are_the_named_recipe_s(shelf: Shelf) -> None:
    recipe = shelf.put("one", "[options]\nX = 0\n")
    request = BuildRequest(recipe=recipe, settings={"": {"X": 1}}, folder=shelf.folder)
    assert resolve(request).recipe.options == {"X": 1}
    assert resolve(shelf.request(recipe, one={"X": 2})).recipe.options == {"X": 2}


def test_the_environment_is_the_stack_s(shelf: Shelf) -> None:
    shelf.put("a", "[environment]\nuse = 'current'\n")
    stack = shelf.stack("recipe = './a.toml'", more="[environment]\npython = '3.12'\n")
    build = resolve(shelf.request(stack))
    assert (build.environment.use, build.environment.python) == ("venv", "3.12")


def test_variants_of_components(shelf: Shelf) -> None:
    shelf.put("a", "[variants.fast.options]\nFAST = true\n")
    stack = shelf.stack("recipe = './a.toml'\nvariant = 'fast'")
    (part,) = resolve(shelf.request(stack)).components
    assert (part.variant, part.options) == ("fast", {"FAST": True})
    with pytest.raises(UsageError, match="no variant 'slow'"):
        resolve(shelf.request(shelf.stack("recipe = './a.toml'\nvariant = 'slow'")))


@pytest.mark.parametrize("trail", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_circular_needs(shelf: Shelf, trail: list[str]) -> None:
    for name, needed in zip(trail, [*trail[1:], trail[0]], strict=True):
        shelf.put(name, f"needs = ['{needed}']\n")
    stack = shelf.stack(*(f"recipe = './{name}.toml'" for name in trail))
    with pytest.raises(UsageError) as raised:
        shelf.names(stack)
    assert " -> ".join([*trail, "a"]) in raised.value.what
    assert raised.value.hint == "correct `needs`"


def test_unknown_components_and_recipes(shelf: Shelf) -> None:
    one = shelf.put("one")
    with pytest.raises(UsageError, match="one has no component 'onne'") as raised:
        shelf.names(one, onne={"X": 1})
    assert "did you mean 'one'?" in raised.value.hint
    with pytest.raises(UsageError, match="there is no recipe 'openblsa'") as raised:
        shelf.names(shelf.put("two", "needs = ['openblsa']\n"))
    assert "did you mean 'openblas'?" in raised.value.hint


def test_a_component_twice(shelf: Shelf) -> None:
    shelf.put("a")
    with pytest.raises(UsageError, match="duplicate component 'a'") as raised:
        shelf.names(shelf.stack("recipe = './a.toml'", "recipe = './a.toml'"))
    assert raised.value.hint


@pytest.mark.parametrize("name", shipped_recipes())
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_shipped_recipe_resolves(name: str, machine: str) -> None:
    build = resolve(BuildRequest(recipe=name, machine=machine))
    names = [part.name for part in build.components]
    for index, part in enumerate(build.components):
        assert all(need in names[:index] for need in part.needs)
