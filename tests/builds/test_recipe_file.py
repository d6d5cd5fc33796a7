"""Recipe files: shipped ones, those of users, merging, placeholders, components, and errors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchyard.builds.recipe import (
    GitSource,
    PrepareCommand,
    Recipe,
    SmokeTest,
    SourceTable,
    VerifyTable,
    fill_placeholders,
)
from torchyard.builds.recipe_file import (
    RECIPE_FOLDER,
    BuildRequest,
    Choice,
    load_recipe_file,
    merged,
    parse_setting,
    read_recipe,
    resolve,
    shipped_recipes,
)
from torchyard.errors import UsageError

MACHINES = ("x86_64", "aarch64")


def every_variant() -> list[tuple[str, str]]:
    return [
        (name, variant)
        for name in shipped_recipes()
        for variant in ("", *load_recipe_file(name).variants)
    ]


def test_shipped_recipes_are_the_promised_ones() -> None:
    assert set(shipped_recipes()) >= {
        "pytorch",
        "openblas",
        "arm-compute-library",
        "onednn",
        "torchvision",
        "torchaudio",
        "torchbench",
        "generic",
        "arm-stack",
        "dev-stack",
    }


def test_pytorch_has_the_promised_variants() -> None:
    variants = load_recipe_file("pytorch").variants
    assert set(variants) >= {"cpu-x86", "cpu-arm", "cuda", "rocm", "debug-info", "trimmed"}


@pytest.mark.parametrize(("name", "variant"), every_variant())
@pytest.mark.parametrize("machine", MACHINES)
def test_every_shipped_variant_reads(name: str, variant: str, machine: str) -> None:
    recipe = read_recipe(load_recipe_file(name), variant=variant, machine=machine)
    assert recipe.name == name
    assert recipe.summary


@pytest.mark.parametrize("variant", ["cpu-x86", "cpu-arm", "cuda", "rocm", "debug-info", "trimmed"])
@pytest.mark.parametrize("minor", range(4, 16))
@pytest.mark.parametrize("environment", ["venv", "conda", "debian-root"])
def test_pytorch_reads_for_every_release_and_environment(
    variant: str, minor: int, environment: str
) -> None:
    recipe = read_recipe(
        load_recipe_file("pytorch"),
        variant=variant,
        version=f"2.{minor}.0",
        settings={"environment.use": environment},
        machine="x86_64",
    )
    assert recipe.version == f"2.{minor}.0"
    assert bool(recipe.python.configure) == (minor < 8), "only setup.py can stop after configuring"


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_a_users_recipe_is_read_by_path(tmp_path: Path) -> None:
    path = write(tmp_path, 'version = "1"\n[source.folder]\npath = "src"\n')
    recipe = read_recipe(load_recipe_file(path), machine="x86_64")
    assert (recipe.name, recipe.version) == ("mine", "1")
    assert recipe.folder == str(tmp_path)
    assert recipe.source.folder is not None


def test_a_relative_path_starts_at_the_folder_given(tmp_path: Path) -> None:
    write(tmp_path, 'version = "1"\n')
    assert load_recipe_file("./mine.toml", folder=tmp_path).name == "mine"


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ('verison = "1"\n', "unknown key 'verison'", "did you mean 'version'?"),
        ("[variants.a]\noptons = {}\n", "variants.a: unknown key 'optons'", "options"),
        ("[source.git]\nurl = 'u'\nreff = 'x'\n", "unknown key 'reff'", "did you mean 'ref'?"),
        ("[source.tarball]\nurl = 'u'\n", "'sha256' is missing", "sha256"),
        ("builder = 'bazel'\n", "'bazel' is not a valid value", ""),
        ("disk-gib = 'much'\n", "'much' is not a number", ""),
        ("variants = 3\n", "variants must be tables", "[variants.NAME]"),
        ("a = = 3\n", "is not valid TOML", "correct"),
        ("[[when]]\nif = { relase = '<2' }\n", "unknown key 'relase'", "did you mean 'release'?"),
        ("version='1'\n[[when]]\nif = { release = 'old' }\n", "'old' is not a version range", ">="),
        ("[variants.a]\nextends = 'b'\n", "", ""),
    ],
)
def test_mistakes_name_the_file_the_key_and_the_fix(
    tmp_path: Path, text: str, what: str, hint: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_recipe(load_recipe_file(path), variant="a" if "extends" in text else "", machine="m")
    assert path in caught.value.what
    assert what in caught.value.what
    assert hint in caught.value.hint


def test_an_unknown_recipe_offers_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe_file("pytroch")
    assert "did you mean 'pytorch'?" in caught.value.hint


def test_an_unknown_variant_offers_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        read_recipe(load_recipe_file("pytorch"), variant="cpu_arm", machine="aarch64")
    assert "did you mean 'cpu-arm'?" in caught.value.hint


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no recipe file"):
        load_recipe_file(str(tmp_path / "none.toml"))


def test_undecodable_bytes_are_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        load_recipe_file(str(tmp_path / "bad.toml"))


def test_recipes_are_data_of_the_package() -> None:
    assert RECIPE_FOLDER.is_dir()
    assert all(path.suffix == ".toml" for path in RECIPE_FOLDER.iterdir() if path.is_file())


def choose(
    variant: str = "",
    version: str = "",
    settings: dict[str, Any] | None = None,
    machine: str = "x86_64",
) -> Choice:
    return Choice(variant=variant, version=version, settings=settings or {}, machine=machine)


BASE: dict[str, Any] = {
    "version": "2.6.0",
    "options": {"USE_CUDA": True, "BUILD_TEST": False},
    "patches": ["a.patch"],
    "source": {"use": "git", "git": {"url": "u"}, "debian": {"package": "p"}},
    "variants": {
        "cpu": {"options": {"USE_CUDA": False}, "patches": ["b.patch"]},
        "small": {"extends": "cpu", "options": {"BUILD_TEST": True}},
    },
    "when": [
        {"if": {"release": "<2.8"}, "why": "old", "python": {"configure": ["x"]}},
        {"if": {"source": "debian"}, "options": {"USE_SYSTEM_LIBS": True}},
        {"if": {"machine": ["aarch64", "arm64"]}, "options": {"ARM": True}},
        {"if": {"variant": "cpu", "machine": "x86_64"}, "options": {"BOTH": True}},
    ],
}


def test_a_variant_merges_tables_and_adds_to_lists() -> None:
    table = merged(BASE, choose("cpu"), where="f")
    assert table["options"]["USE_CUDA"] is False
    assert table["options"]["BUILD_TEST"] is False
    assert table["patches"] == ["a.patch", "b.patch"]


def test_a_variant_can_extend_another() -> None:
    table = merged(BASE, choose("small"), where="f")
    assert table["options"]["USE_CUDA"] is False
    assert table["options"]["BUILD_TEST"] is True


def test_variants_that_extend_each_other_are_reported() -> None:
    loop = {"variants": {"a": {"extends": "b"}, "b": {"extends": "a"}}}
    with pytest.raises(UsageError, match="cannot be extended"):
        merged(loop, choose("a"), where="f")


def test_the_base_is_not_changed() -> None:
    merged(BASE, choose("cpu", settings={"NEW": 1}), where="f")
    assert BASE["patches"] == ["a.patch"]
    assert "NEW" not in BASE["options"]


@pytest.mark.parametrize(
    ("version", "has"), [("2.6.0", True), ("2.8.0", False), ("2.13.1", False), ("main", False)]
)
def test_release_conditions_follow_the_chosen_version(version: str, has: bool) -> None:
    table = merged(BASE, choose(version=version), where="f")
    assert ("python" in table) is has


def test_conditions_see_the_users_settings() -> None:
    table = merged(BASE, choose(settings={"source.use": "debian"}), where="f")
    assert table["options"]["USE_SYSTEM_LIBS"] is True


def test_all_parts_of_a_condition_must_hold() -> None:
    assert "BOTH" in merged(BASE, choose("cpu"), where="f")["options"]
    assert "BOTH" not in merged(BASE, choose("cpu", machine="aarch64"), where="f")["options"]
    assert "ARM" in merged(BASE, choose("cpu", machine="aarch64"), where="f")["options"]


def test_settings_win_over_conditions_and_replace_lists() -> None:
    settings = {"source.use": "debian", "USE_SYSTEM_LIBS": False, "patches": ["c.patch"]}
    table = merged(BASE, choose("cpu", settings=settings), where="f")
    assert table["options"]["USE_SYSTEM_LIBS"] is False
    assert table["patches"] == ["c.patch"]


def test_an_unknown_word_with_dots_is_no_option() -> None:
    with pytest.raises(UsageError) as caught:
        merged(BASE, choose(settings={"sorce.use": "git"}), where="f")
    assert "did you mean 'source'?" in caught.value.hint


def test_a_part_of_a_key_in_quotes_may_hold_dots() -> None:
    settings = {'compile-options."*elastic*.c"': "-O0", "compile_options.Flash*": "-O1"}
    table = merged(BASE, choose(settings=settings), where="f")
    assert table["compile-options"] == {"*elastic*.c": "-O0", "Flash*": "-O1"}
    _, key, value = parse_setting('compile-options."a.b.c"=-O0 -g')
    assert merged(BASE, choose(settings={key: value}), where="f")["compile-options"] == {
        "a.b.c": "-O0 -g"
    }


def test_a_setting_below_a_plain_value_is_reported() -> None:
    with pytest.raises(UsageError, match="is not a table"):
        merged(BASE, choose(settings={"version.major": "2"}), where="f")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("USE_CUDA=0", ("", "USE_CUDA", 0)),
        ("USE_CUDA=true", ("", "USE_CUDA", True)),
        ("version=2.10", ("", "version", "2.10")),
        ("TORCH_CUDA_ARCH_LIST=8.0;9.0+PTX", ("", "TORCH_CUDA_ARCH_LIST", "8.0;9.0+PTX")),
        ("source.git.ref=main", ("", "source.git.ref", "main")),
        ("pytorch/version=2.5.0", ("pytorch", "version", "2.5.0")),
        ('patches=["a", "b"]', ("", "patches", ["a", "b"])),
        ("CXXFLAGS=-O2 -g=3", ("", "CXXFLAGS", "-O2 -g=3")),
        ("EMPTY=", ("", "EMPTY", "")),
    ],
)
def test_settings_are_toml_where_they_can_be(text: str, expected: tuple[str, str, object]) -> None:
    assert parse_setting(text) == expected


@pytest.mark.parametrize("text", ["USE_CUDA", "=1", "pytorch/=1"])
def test_a_setting_without_key_or_value_is_reported(text: str) -> None:
    with pytest.raises(UsageError, match="is not KEY=VALUE"):
        parse_setting(text)


def test_a_path_in_a_value_is_not_a_component() -> None:
    assert parse_setting("ROCM_PATH=/opt/rocm") == ("", "ROCM_PATH", "/opt/rocm")


NAMES = {"version": "2.6.0", "tree": "/b/tree", "needs.openblas.prefix": "/b/prefix"}


def test_every_text_is_filled_in() -> None:
    recipe = Recipe(
        name="r",
        source=SourceTable(git=GitSource(url="u", ref="v{version}")),
        options={"OpenBLAS_HOME": "{needs.openblas.prefix}", "COUNT": 3},
        prepare=(PrepareCommand(run=("cp", "{tree}/a", "b")),),
    )
    filled = fill_placeholders(recipe, NAMES, where="r")
    assert filled.source.git is not None
    assert filled.source.git.ref == "v2.6.0"
    assert filled.options == {"OpenBLAS_HOME": "/b/prefix", "COUNT": 3}
    assert filled.prepare[0].run == ("cp", "/b/tree/a", "b")


def test_programs_keep_their_braces() -> None:
    smoke = SmokeTest(name="s", python="print(f'{tree}')")
    recipe = Recipe(name="r", verify=VerifyTable(smoke=(smoke,)))
    assert fill_placeholders(recipe, NAMES, where="r").verify.smoke[0].python == "print(f'{tree}')"


def test_braces_that_are_no_name_stay() -> None:
    recipe = Recipe(name="r", options={"A": "${HOME} {} {1} {A B}"})
    assert fill_placeholders(recipe, NAMES, where="r").options["A"] == "${HOME} {} {1} {A B}"


def test_an_unknown_name_is_reported_with_its_key() -> None:
    recipe = Recipe(name="r", options={"A": "{versoin}"})
    with pytest.raises(UsageError) as caught:
        fill_placeholders(recipe, NAMES, where="r")
    assert "r.options.A: unknown placeholder {versoin}" in caught.value.what
    assert "did you mean 'version'?" in caught.value.hint


def test_one_table_alone_can_be_filled_in() -> None:
    recipe = Recipe(
        name="r",
        source=SourceTable(git=GitSource(url="u", ref="v{version}")),
        options={"A": "{unknown.yet}"},
    )
    filled = fill_placeholders(recipe, {"version": "1"}, where="r", only="source")
    assert filled.source.git is not None
    assert filled.source.git.ref == "v1"
    assert filled.options["A"] == "{unknown.yet}"


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


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake")
def test_six_is_named_to_a_subproject(tmp_path: Path) -> None:
    """NNPACK, a subproject, downloads six unless a CMake variable names its folder."""
    recipe = read_recipe(load_recipe_file("pytorch"), variant="cpu-x86", machine="x86_64")
    (prepare,) = recipe.prepare
    tree = tmp_path / "tree"
    (tree / "nnpack").mkdir(parents=True)
    subprocess.run(prepare.run, cwd=tree, check=True)
    (tree / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(top NONE)\nadd_subdirectory(nnpack)\n"
    )
    (tree / "nnpack/CMakeLists.txt").write_text(
        "project(nnpack NONE)\nif(NOT DEFINED PYTHON_SIX_SOURCE_DIR)\n"
        '  message(FATAL_ERROR "downloads six")\nendif()\n'
        'message(STATUS "six in <${PYTHON_SIX_SOURCE_DIR}>")\n'
    )
    programs, packages = tmp_path / "bin", tmp_path / "packages"
    programs.mkdir()
    packages.mkdir()
    (packages / "six.py").touch()
    (programs / "python").symlink_to(sys.executable)
    variables = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(packages)}
    include = str(recipe.options["CMAKE_PROJECT_INCLUDE"]).replace("{tree}", str(tree))

    def configure(*options: str) -> subprocess.CompletedProcess[str]:
        argv = ["cmake", "-S", str(tree), "-B", str(tmp_path / "build"), *options]
        return subprocess.run(argv, env=variables, capture_output=True, text=True, check=False)

    assert "downloads six" in configure().stderr
    assert f"six in <{packages}>" in configure(f"-DCMAKE_PROJECT_INCLUDE={include}").stdout
