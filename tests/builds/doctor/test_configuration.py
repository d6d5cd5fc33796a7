"""Source folders, leftover caches, and options and variables without effect."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.builds.doctor.fake_machine import FakeMachine
from torchyard.builds.doctor.configuration import (
    looks_like_option,
    nearest_option,
    route_of,
)
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


@pytest.mark.parametrize(
    "name",
    [
        "USE_CUDA",
        "BUILD_TEST",
        "CMAKE_BUILD_TYPE",
        "USE_SOMETHING_NEW",
        "HAVE_STD_REGEX_EXITCODE",
        "X_EXITCODE__TRYRUN_OUTPUT",
        "BLAS",
        "WITH_BLAS",
        "TORCH_CUDA_ARCH_LIST",
        "CUDNN_LIB_DIR",
        "CUDAHOSTCXX",
        "Numa_LIBRARIES",
    ],
)
@pytest.mark.parametrize("release", ["2.4", "2.6.0", "2.13", "2.15"])
def test_reaches_cmake(name: str, release: str) -> None:
    assert route_of(name, release) == "cmake"


@pytest.mark.parametrize(
    "name",
    ["DEBUG_CUDA", "NO_CUDA", "WITH_DISTRIBUTED", "ENABLE_MKL", "TORCH_CUDA_ARCHLIST"],
)
def test_is_not_forwarded_although_it_resembles_an_option(name: str) -> None:
    assert looks_like_option(name)
    assert route_of(name, "2.6") == "nowhere"
    assert route_of(name, "2.6") != "cmake"


@pytest.mark.parametrize(
    ("name", "release", "route"),
    [
        ("_GLIBCXX_USE_CXX11_ABI", "2.6", "cmake"),
        ("_GLIBCXX_USE_CXX11_ABI", "2.7", "nowhere"),
        ("FLASH_ATTENTION_MAX_JOBS", "2.13", "nowhere"),
        ("FLASH_ATTENTION_MAX_JOBS", "2.15", "cmake"),
        ("CMAKE_FRESH", "2.9", "front end"),
        ("CMAKE_FRESH", "2.14", "nowhere"),
        ("CMAKE_ONLY", "2.6", "nowhere"),
        ("USE_NIGHTLY", "2.13", "front end"),
        ("JAVA_HOME", "2.6", "cmake"),
        ("ACL_ROOT_DIR", "2.6", "environment"),
        ("PYTORCH_ROCM_ARCH", "2.6", "environment"),
        ("MAX_JOBS", "2.6", "front end"),
        ("REL_WITH_DEB_INFO", "2.6", "front end"),
    ],
)
def test_route_depends_on_name_and_release(name: str, release: str, route: str) -> None:
    assert route_of(name, release) == route


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("USE_MKLDN", "USE_MKLDNN"),
        ("USE_CUDNNN", "USE_CUDNN"),
        ("BUILD_TESTS", "BUILD_TEST"),
        ("USE_FLASHATTENTION", "USE_FLASH_ATTENTION"),
        ("USE_CUDA", ""),
        ("USE_SYSTEM_FP16", ""),
        ("USE_MY_OWN_THING", ""),
        ("CMAKE_BUILD_TYP", ""),
    ],
)
def test_nearest_option(name: str, meant: str) -> None:
    assert nearest_option(name) == meant


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "CFLAGS",
        "DEBUG",
        "MAX_JOBS",
        "use_cuda",
        "NCCL_VERSION",
        "NCCL_DEBUG",
        "CUDA_VISIBLE_DEVICES",
        "TORCH_LOGS",
        "PYTORCH_CUDA_ALLOC_CONF",
        "MKL_NUM_THREADS",
        "NO_COLOR",
        "NO_PROXY",
        "JAVA_HOME",
        "DEBUG_COLORS",
    ],
)
def test_variables_of_running_programs_do_not_resemble_options(name: str) -> None:
    assert not looks_like_option(name)
