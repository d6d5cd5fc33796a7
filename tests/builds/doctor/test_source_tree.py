"""Source folders: submodules, ownership checks of git, leftover caches."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.builds.doctor.fake_machine import FakeMachine
from torchyard.builds.recipe import FolderSource, GitSource, Recipe, Scalar, SourceTable

GITMODULES = """\
[submodule "third_party/pybind11"]
\tignore = dirty
\tpath = third_party/pybind11
\turl = https://github.com/pybind/pybind11.git
[submodule "third_party/sleef"]
\tpath = third_party/sleef
\turl = https://github.com/shibatch/sleef
"""


def from_folder(folder: Path, version: str = "2.6.0", **options: Scalar) -> Recipe:
    return Recipe(
        name="pytorch",
        version=version,
        builder="python",
        source=SourceTable(folder=FolderSource(path=str(folder))),
        options=options,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "py torch"
    for name in ("pybind11", "sleef"):
        (folder / "third_party" / name).mkdir(parents=True)
    (folder / ".gitmodules").write_text(GITMODULES, encoding="utf-8")
    return folder


class TestSubmodules:
    def test_empty_ones_block(self, machine: FakeMachine, tree: Path) -> None:
        (tree / "third_party/sleef/CMakeLists.txt").touch()
        (tree / ".git").mkdir()
        (finding,) = machine.examine(from_folder(tree), only="source-folder")
        assert finding.severity == "blocks"
        assert finding.what.endswith("are empty: third_party/pybind11")
        assert finding.fix == f"git -C '{tree}' submodule update --init --recursive"

    def test_an_archive_without_them_can_not_be_updated(
        self, machine: FakeMachine, tree: Path
    ) -> None:
        (finding,) = machine.examine(from_folder(tree), only="source-folder")
        assert "--recursive" in finding.fix
        assert "git -C" not in finding.fix

    def test_a_git_link_alone_is_not_a_checkout(self, machine: FakeMachine, tree: Path) -> None:
        (tree / "third_party/sleef/.git").touch()
        (finding,) = machine.examine(from_folder(tree), only="source-folder")
        assert finding.what.endswith("third_party/pybind11, third_party/sleef")

    def test_all_there(self, machine: FakeMachine, tree: Path) -> None:
        for name in ("pybind11", "sleef"):
            (tree / "third_party" / name / "README.md").touch()
        assert machine.examine(from_folder(tree), only="source-folder") == ()

    def test_folder_that_is_missing(self, machine: FakeMachine, tmp_path: Path) -> None:
        (finding,) = machine.examine(from_folder(tmp_path / "gone"), only="source-folder")
        assert (finding.severity, "does not exist" in finding.what) == ("blocks", True)

    def test_other_sources_are_not_checked(self, machine: FakeMachine, tree: Path) -> None:
        both = SourceTable(
            use="git", git=GitSource(url="https://x"), folder=FolderSource(path=str(tree))
        )
        assert machine.examine(Recipe(name="pytorch", source=both), only="source-folder") == ()

    def test_damaged_gitmodules(self, machine: FakeMachine, tree: Path) -> None:
        (tree / ".gitmodules").write_text("path = outside any section\n", encoding="utf-8")
        assert machine.examine(from_folder(tree), only="source-folder") == ()


class TestTrust:
    def test_a_repository_of_another_user(
        self, machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        git = shutil.which("git", path="/usr/bin:/bin")
        if git is None:
            pytest.skip("no git here")
        folder = tmp_path / "repository"
        monkeypatch.setenv("HOME", str(tmp_path))
        subprocess.run([git, "init", "-q", str(folder)], check=True)
        machine.real_tools = True
        # git's own switch for its tests of this: pretend that another user owns it.
        machine.variables["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"
        (finding,) = machine.examine(from_folder(folder), only="source-folder")
        assert finding.severity == "warns"
        assert finding.fix == f"git config --global --add safe.directory {folder}"
        del machine.variables["GIT_TEST_ASSUME_DIFFERENT_OWNER"]
        assert machine.examine(from_folder(folder), only="source-folder") == ()


class TestStaleCache:
    def cache(self, tree: Path, home: Path, *lines: str) -> None:
        (tree / "build").mkdir(exist_ok=True)
        text = "\n".join((*lines, f"CMAKE_HOME_DIRECTORY:INTERNAL={home}", ""))
        (tree / "build/CMakeCache.txt").write_text(text, encoding="utf-8")

    def test_of_another_source_blocks(self, machine: FakeMachine, tree: Path) -> None:
        self.cache(tree, Path("/home/somebody/pytorch"))
        (finding,) = machine.examine(from_folder(tree), only="stale-cache")
        assert finding.severity == "blocks"
        assert finding.what.endswith("was generated for /home/somebody/pytorch")
        assert finding.fix == f"rm -rf '{tree}/build'"

    def test_other_options_warn(self, machine: FakeMachine, tree: Path) -> None:
        self.cache(tree, tree, "USE_CUDA:BOOL=ON", "USE_MKLDNN:BOOL=1", "BLAS:STRING=MKL")
        recipe = from_folder(tree, USE_CUDA=False, USE_MKLDNN=True, BLAS="OpenBLAS", USE_NEW=True)
        (finding,) = machine.examine(recipe, only="stale-cache")
        assert finding.severity == "warns"
        assert finding.detail == (
            "USE_CUDA is ON, requested OFF",
            "BLAS is MKL, requested OpenBLAS",
        )

    def test_releases_with_a_switch_for_it(self, machine: FakeMachine, tree: Path) -> None:
        self.cache(tree, tree, "USE_CUDA:BOOL=ON")
        (old,) = machine.examine(from_folder(tree, "2.6", USE_CUDA=False), only="stale-cache")
        (new,) = machine.examine(from_folder(tree, "2.9", USE_CUDA=False), only="stale-cache")
        assert "CMAKE_FRESH" not in old.fix
        assert new.fix.endswith("or set CMAKE_FRESH=1")

    def test_new_releases_take_the_variable(self, machine: FakeMachine, tree: Path) -> None:
        self.cache(tree, tree, "USE_CUDA:BOOL=ON")
        recipe = from_folder(tree, "2.14.0", USE_CUDA=False)
        assert machine.examine(recipe, only="stale-cache") == ()

    def test_the_plans_own_tree(self, machine: FakeMachine) -> None:
        recipe = Recipe(name="pytorch", version="2.6.0", options={"USE_CUDA": False})
        plan = machine.plan(recipe)
        tree = Path(plan.components[0].tree)
        tree.mkdir(parents=True)
        self.cache(tree, tree, "USE_CUDA:BOOL=ON")
        (finding,) = machine.examine(plan=plan, only="stale-cache")
        assert str(tree) in finding.what

    def test_agreement_is_silent(self, machine: FakeMachine, tree: Path) -> None:
        self.cache(tree, tree, "USE_CUDA:BOOL=OFF")
        assert machine.examine(from_folder(tree, USE_CUDA=False), only="stale-cache") == ()
        assert machine.examine(from_folder(tree / "third_party"), only="stale-cache") == ()
