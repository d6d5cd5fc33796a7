"""From a named recipe to its components: order, settings, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchyard.builds.recipe_file import BuildRequest, resolve, shipped_recipes
from torchyard.errors import UsageError

SOURCE = "[source.folder]\npath = '/'\n"


class RecipeFolder:
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
def recipe_folder(tmp_path: Path) -> RecipeFolder:
    return RecipeFolder(tmp_path)


def test_a_recipe_is_its_own_component(recipe_folder: RecipeFolder) -> None:
    build = resolve(recipe_folder.request(recipe_folder.put("one", "version = '1'\n")))
    assert [part.name for part in build.components] == ["one"]
    assert build.recipe == build.components[0]
    assert build.recipe.folder == str(recipe_folder.folder.resolve())


def test_components_are_in_dependency_order(recipe_folder: RecipeFolder) -> None:
    for name, needs in (("a", "['b', 'c']"), ("b", "['c']"), ("c", "[]"), ("d", "[]")):
        recipe_folder.put(name, f"needs = {needs}\n")
    parts = [f"recipe = './{name}.toml'" for name in "adbc"]
    assert recipe_folder.names(recipe_folder.stack(*parts)) == ["c", "b", "a", "d"]


def test_needs_of_a_stack_are_added_to_those_of_the_recipe(recipe_folder: RecipeFolder) -> None:
    for name in "abc":
        recipe_folder.put(name, "needs = ['c']\n" if name == "a" else "")
    stack = recipe_folder.stack(
        "recipe = './a.toml'\nneeds = ['b', 'c']", "recipe = './b.toml'", "recipe = './c.toml'"
    )
    build = resolve(recipe_folder.request(stack))
    assert [part.name for part in build.components] == ["c", "b", "a"]
    assert build.components[-1].needs == ("c", "b")


def test_needed_shipped_recipes_are_added(recipe_folder: RecipeFolder) -> None:
    recipe = recipe_folder.put("mine", "needs = ['openblas']\n")
    assert recipe_folder.names(recipe) == ["openblas", "mine"]
    build = resolve(recipe_folder.request(recipe, openblas={"USE_OPENMP": 0}))
    assert build.components[0].options["USE_OPENMP"] == 0


def test_settings_reach_the_component_they_name(recipe_folder: RecipeFolder) -> None:
    for name in "ab":
        recipe_folder.put(name, "[options]\nX = 0\n")
    stack = recipe_folder.stack(
        "recipe = './a.toml'\nversion = '3'\nsettings = { X = 1, Y = 1 }", "recipe = './b.toml'"
    )
    build = resolve(recipe_folder.request(stack, a={"X": 2}, b={"version": "5"}))
    first, second = build.components
    assert (first.version, first.options) == ("3", {"X": 2, "Y": 1})
    assert (second.version, second.options) == ("5", {"X": 0})


def test_settings_without_a_name_are_the_named_recipe_s(recipe_folder: RecipeFolder) -> None:
    recipe = recipe_folder.put("one", "[options]\nX = 0\n")
    request = BuildRequest(recipe=recipe, settings={"": {"X": 1}}, folder=recipe_folder.folder)
    assert resolve(request).recipe.options == {"X": 1}
    assert resolve(recipe_folder.request(recipe, one={"X": 2})).recipe.options == {"X": 2}


def test_the_environment_is_the_stack_s(recipe_folder: RecipeFolder) -> None:
    recipe_folder.put("a", "[environment]\nuse = 'current'\n")
    stack = recipe_folder.stack("recipe = './a.toml'", more="[environment]\npython = '3.12'\n")
    build = resolve(recipe_folder.request(stack))
    assert (build.environment.use, build.environment.python) == ("venv", "3.12")


def test_variants_of_components(recipe_folder: RecipeFolder) -> None:
    recipe_folder.put("a", "[variants.fast.options]\nFAST = true\n")
    stack = recipe_folder.stack("recipe = './a.toml'\nvariant = 'fast'")
    (part,) = resolve(recipe_folder.request(stack)).components
    assert (part.variant, part.options) == ("fast", {"FAST": True})
    with pytest.raises(UsageError, match="no variant 'slow'"):
        resolve(recipe_folder.request(recipe_folder.stack("recipe = './a.toml'\nvariant = 'slow'")))


@pytest.mark.parametrize("trail", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_circular_needs(recipe_folder: RecipeFolder, trail: list[str]) -> None:
    for name, needed in zip(trail, [*trail[1:], trail[0]], strict=True):
        recipe_folder.put(name, f"needs = ['{needed}']\n")
    stack = recipe_folder.stack(*(f"recipe = './{name}.toml'" for name in trail))
    with pytest.raises(UsageError) as raised:
        recipe_folder.names(stack)
    assert " -> ".join([*trail, "a"]) in raised.value.what
    assert raised.value.hint == "correct `needs`"


def test_unknown_components_and_recipes(recipe_folder: RecipeFolder) -> None:
    one = recipe_folder.put("one")
    with pytest.raises(UsageError, match="one has no component 'onne'") as raised:
        recipe_folder.names(one, onne={"X": 1})
    assert "did you mean 'one'?" in raised.value.hint
    with pytest.raises(UsageError, match="there is no recipe 'openblsa'") as raised:
        recipe_folder.names(recipe_folder.put("two", "needs = ['openblsa']\n"))
    assert "did you mean 'openblas'?" in raised.value.hint


def test_a_duplicate_component(recipe_folder: RecipeFolder) -> None:
    recipe_folder.put("a")
    with pytest.raises(UsageError, match="duplicate component 'a'") as raised:
        recipe_folder.names(recipe_folder.stack("recipe = './a.toml'", "recipe = './a.toml'"))
    assert raised.value.hint


@pytest.mark.parametrize("name", shipped_recipes())
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_shipped_recipe_resolves(name: str, machine: str) -> None:
    build = resolve(BuildRequest(recipe=name, machine=machine))
    names = [part.name for part in build.components]
    for index, part in enumerate(build.components):
        assert all(need in names[:index] for need in part.needs)
