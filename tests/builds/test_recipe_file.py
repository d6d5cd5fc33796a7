"""Recipe files: shipped ones, those of users, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard.builds.recipe_file import (
    RECIPE_FOLDER,
    load_recipe_file,
    read_recipe,
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
