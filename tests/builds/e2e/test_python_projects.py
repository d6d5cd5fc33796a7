"""Python projects with native code: every generation of build front ends, their tests, a torch extension."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builds.e2e.build_cli import Cli
from tests.builds.e2e.projects import ERAS, python_project, torch_extension, write

NAMES = {"setup.py": "oldest", "setuptools": "middle", "scikit-build-core": "newest"}
STACK = """\
[environment]
use = "venv"
base = "{base}"
"""
COMPONENT = """\
builder = "python"
version = "1.5"

[source.folder]
path = "{source}"

[python]
front-end = "{front_end}"
{more}

[verify]
import-name = "{name}"
libraries = ["{name}/_native*.so"]
[[verify.smoke]]
name = "answers"
python = "import {name}; assert {name}.answer() == 42"
[[verify.tests]]
path = "checks/check_{name}.py"
known-failures = ["test_known"]
"""
BY_CMAKE = """\
options-as = "cmake-args"
compiles-with = "cmake"

[options]
SPICY = true
"""


class Eras:
    """A build of three packages, each with its own front end."""

    def __init__(self, cli: Cli, folder: Path, base: Path) -> None:
        stack = STACK.format(base=base)
        files = {}
        for era in ERAS:
            name = NAMES[era]
            source = python_project(folder / "sources" / name, era, name)
            files[f"{name}.toml"] = COMPONENT.format(
                name=name,
                source=source,
                front_end="setup.py" if era == "setup.py" else "pep517",
                more=BY_CMAKE if era == "scikit-build-core" else "",
            )
            stack += f'[[components]]\nrecipe = "./{name}.toml"\n'
        self.cli = cli
        self.recipe = write(folder, {**files, "eras.toml": stack}) / "eras.toml"
        self.folder = cli.folder("eras")
        self.words = (str(self.recipe), "--name", "eras", "--cache", "none")

    def ask(self, code: str) -> str:
        """What a line of Python says in the finished target, outside of everything."""
        done = subprocess.run(
            [str(self.folder / "bin" / "python"), "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
        )
        return done.stdout


@pytest.fixture(scope="module")
def eras(shared_cli: Cli, shared_folder: Path, tools: Path) -> Eras:
    made = Eras(shared_cli, shared_folder / "recipes", tools / "bin" / "python")
    shared_cli.build(*made.words)
    return made


@pytest.mark.parametrize("era", ERAS)
def test_each_era_gives_a_wheel_that_imports(eras: Eras, era: str) -> None:
    name = NAMES[era]
    (wheel,) = (eras.folder / "wheels").glob(f"{name}-1.5-*.whl")
    code = f"import {name}; print({name}.answer(), {name}.__file__)"
    answer, file = eras.ask(code).split()
    assert answer == "42"
    assert file.startswith(str(eras.folder / "env"))
    part = next(one for one in eras.cli.record("eras")["components"] if one["name"] == name)
    assert [one["file"] for one in part["wheels"]] == [wheel.name]
    assert part["verified"]["imported"]["version"] == "1.5"
    assert part["verified"]["smoke"][0]["passed"]
    assert f"{name} @ file://" in (eras.folder / "freeze.txt").read_text()


def test_compiles_of_every_era_are_measured(eras: Eras) -> None:
    for era in ERAS:
        names = eras.cli.compiled("eras", NAMES[era])
        assert [one for one in names if one.startswith("_native")], era


def test_options_reach_scikit_build(eras: Eras) -> None:
    part = next(one for one in eras.cli.record("eras")["components"] if one["name"] == "newest")
    (verdict,) = part["verified"]["options"]
    assert (verdict["name"], verdict["verdict"]) == ("SPICY", "honoured")


def test_a_second_run_does_nothing(eras: Eras) -> None:
    assert "nothing to do" in eras.cli.build(*eras.words).out


@pytest.mark.parametrize("name", ["middle", "newest"])
def test_an_edit_is_compiled_packed_and_installed(eras: Eras, name: str) -> None:
    source = eras.folder / "trees" / name / name / "_native.c"
    text = source.read_text()
    source.write_text(text.replace("FromLong(42)", "FromLong(40 + 2)"))
    before = len(eras.cli.compiled("eras", name))
    eras.cli.build("rebuild", "eras", "--component", name)
    compiled = [one for one in eras.cli.compiled("eras", name)[before:] if "_native" in one]
    assert len(compiled) == 2, "the object and the library"
    assert eras.ask(f"import {name}; print({name}.answer())") == "42\n"


def test_tests_are_accounted_for(eras: Eras) -> None:
    ended = eras.cli.build("test", "eras", "--component", "middle", "--json", code=7)
    (account,) = ended.json()["tests"]
    assert (account["passed"], account["failed"]) == (2, 2)
    assert [name.rpartition("::")[2] for name in account["new_failures"]] == ["test_new"]
    assert [name.rpartition("::")[2] for name in account["known_failures"]] == ["test_known"]
    assert "running checks/check_middle.py" in ended.err


def test_tests_as_text_and_a_named_file(eras: Eras) -> None:
    tests = eras.folder / "trees" / "middle" / "checks" / "check_good.py"
    tests.write_text("import middle\n\ndef test_answer():\n    assert middle.answer() == 42\n")
    words = ("test", "eras", "--component", "middle", "checks/check_good.py")
    assert "1 passed, 0 failed (0 known)" in eras.cli.build(*words).out
    ended = eras.cli.build("test", "eras", "--component", "middle", code=7)
    assert "new failure: " in ended.out
    assert "known failure: " in ended.out
    missing = eras.cli.build(*words[:-1], "checks/none.py", code=2)
    assert "there is no test file" in missing.err


def test_an_option_that_is_no_longer_set_has_its_default_again(eras: Eras) -> None:
    """CMake keeps options in its cache, and so does PyTorch's setup.py."""
    cache = eras.folder / "trees/newest/build/CMakeCache.txt"
    assert "SPICY:BOOL=ON" in cache.read_text()
    recipe = eras.recipe.with_name("newest.toml")
    recipe.write_text(recipe.read_text().replace("SPICY = true\n", ""))
    assert "newest/options" in eras.cli.build(*eras.words).err
    assert "SPICY:BOOL=OFF" in cache.read_text()
    assert "nothing to do" in eras.cli.build(*eras.words).out


@pytest.fixture(scope="module")
def twice(shared_cli: Cli, shared_folder: Path) -> Path:
    """The folder of a build of a torch extension, by the command that a user types."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch here")
    source = torch_extension(shared_folder / "twice")
    code = "import torch, twice; assert twice.twice(torch.ones(2)).tolist() == [2.0, 2.0]"
    shared_cli.build(
        *("generic", "--variant", "python", "--name", "twice", "--base", sys.executable),
        *("--set", f"source.folder.path={source}", "--set", "verify.import-name=twice"),
        *("--set", f"verify.smoke=[{{ name = 'doubles', python = '{code}' }}]"),
        *("--set", 'verify.libraries=["twice/_C*.so"]'),
    )
    return shared_cli.folder("twice")


@pytest.mark.torch
def test_a_torch_extension_is_built_against_the_base_and_called(twice: Path) -> None:
    import torch

    code = "import torch, twice; print(twice.twice(torch.tensor([1.5])).item(), torch.__version__)"
    done = subprocess.run(
        [str(twice / "bin" / "python"), "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    assert done.stdout.split() == ["3.0", torch.__version__]
    assert not list((twice / "env").glob("lib/python*/site-packages/torch/__init__.py"))


@pytest.mark.torch
def test_the_record_of_a_torch_extension(twice: Path, shared_cli: Cli) -> None:
    record = shared_cli.record("twice")
    (part,) = record["components"]
    assert part["verified"]["smoke"][0]["passed"]
    seen = {package["name"]: package for package in record["packages"]}
    assert seen["torch"]["origin"].endswith("site-packages"), "seen in the base, not installed"
    assert seen["twice"]["origin"].startswith("file://")
    assert record["python"] == str(twice / "bin" / "python")


@pytest.mark.torch
def test_a_build_folder_is_a_target(twice: Path, shared_cli: Cli) -> None:
    import torch

    for words in (str(twice), f"mine={twice}"):
        document = shared_cli.program("target", words, "--json").json()
        assert torch.__version__ in json.dumps(document)
