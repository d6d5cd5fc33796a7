"""What a configure step would download is fetched with the source, for every release."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.e2e.projects import GIT_VARIABLES, commit, git, repository, write
from tests.builds.sources.fetching import CommandFailed, Place
from tests.builds.sources.file_server import FileServer, Reply
from torchyard.builds.build_folders import BuildsDirectory
from torchyard.builds.compatibility import known_releases
from torchyard.builds.plan import Command
from torchyard.builds.planner import make_plan
from torchyard.builds.recipe import GitSource, Scalar, SourceTable
from torchyard.builds.recipe_file import BuildRequest, load_recipe_file, read_recipe
from torchyard.builds.sources import configure_downloads as module
from torchyard.builds.sources.configure_downloads import (
    all_configure_downloads,
    configure_downloads,
    download_actions,
)
from torchyard.builds.sources.download_aotriton import aotriton_files

PROGRAM = Path(module.__file__).with_name("download_aotriton.py")
SOURCE_VARIABLE = "TORCHYARD_TEST_PYTORCH_SOURCE"
PIN = ".ci/docker/ci_commit_pins/nccl-cu12.txt"
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def downloads(
    variant: str, version: str, settings: Mapping[str, Scalar] | None = None
) -> list[str]:
    recipe = read_recipe(
        load_recipe_file("pytorch"),
        variant=variant,
        version=version,
        settings=dict(settings or {}),
        machine="x86_64",
    )
    return [item.name for item in configure_downloads(recipe)]


@pytest.mark.parametrize("release", known_releases("pytorch"))
def test_a_cuda_build_gets_nccl_from_2_7_on(release: str) -> None:
    minor = int(release.partition(".")[2])
    assert ("nccl" in downloads("cuda", f"{release}.0")) == (minor >= 7)
    assert ("nccl" in downloads("cuda", f"{release}.0", {"USE_SYSTEM_NCCL": True})) is False
    assert ("nccl" in downloads("cuda", f"{release}.0", {"USE_NCCL": False})) is False
    # An option that is off does not ask for the system's.
    assert ("nccl" in downloads("cuda", f"{release}.0", {"USE_SYSTEM_NCCL": False})) == (minor >= 7)


@pytest.mark.parametrize("release", known_releases("pytorch"))
def test_a_rocm_build_gets_aotriton(release: str) -> None:
    assert "aotriton" in downloads("rocm", f"{release}.0")
    assert ("nccl" in downloads("rocm", f"{release}.0")) == (release == "2.7")
    installed = {"environment.variables.AOTRITON_INSTALLED_PREFIX": "/opt/aotriton"}
    assert "aotriton" not in downloads("rocm", f"{release}.0", installed)
    assert "aotriton" not in downloads("cuda", f"{release}.0")
    assert "aotriton" in downloads("rocm", f"{release}.0", {"USE_FLASH_ATTENTION": False})
    neither = {"USE_FLASH_ATTENTION": False, "USE_MEM_EFF_ATTENTION": False}
    assert "aotriton" not in downloads("rocm", f"{release}.0", neither)


@pytest.mark.parametrize("release", known_releases("pytorch"))
def test_a_cpu_build_gets_neither(release: str) -> None:
    assert not {"nccl", "aotriton"} & set(downloads("cpu-x86", f"{release}.0"))
    assert "eigen" not in downloads("cpu-x86", f"{release}.0", {"BLAS": "OpenBLAS"})


def test_a_branch_counts_as_the_newest() -> None:
    assert "nccl" in downloads("cuda", "main")


def test_builds_with_and_without_downloads_do_not_share_a_source(tmp_path: Path) -> None:
    home = BuildsDirectory(folder=tmp_path)

    def source(variant: str, *settings: tuple[str, Scalar]) -> str:
        request = BuildRequest(
            recipe="pytorch", variant=variant, settings={"": dict(settings)}, machine="x86_64"
        )
        return make_plan(request, home=home, environ={"PATH": ""}).components[-1].source

    assert source("cuda") != source("cuda", ("USE_SYSTEM_NCCL", True))
    assert source("cpu-x86") == source("trimmed")


def test_the_build_finds_aotriton(tmp_path: Path) -> None:
    request = BuildRequest(recipe="pytorch", variant="rocm", machine="x86_64")
    plan = make_plan(request, home=BuildsDirectory(folder=tmp_path), environ={"PATH": ""})
    build = next(step for step in plan.steps if step.name == "pytorch/build")
    folder = f"{plan.components[-1].tree}/third_party/aotriton"
    assert dict(build.variables)["AOTRITON_INSTALLED_PREFIX"] == folder
    assert not build.network


# --- git -----------------------------------------------------------------------------------------


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a pin file, and the repository that it pins, found instead of the real one."""
    for name, value in GIT_VARIABLES.items():
        monkeypatch.setenv(name, value)
    nccl = write(tmp_path / "nccl", {"nccl.h.in": "one"})
    repository(nccl)
    git(nccl, "tag", "v2.27.3-1")
    write(nccl, {"nccl.h.in": "two"})
    commit(nccl, "two")
    git(nccl, "tag", "v2.28.9-1")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "2")
    monkeypatch.setenv("GIT_CONFIG_KEY_1", f"url.{nccl.as_uri()}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_1", "https://github.com/NVIDIA/nccl")
    tree = write(tmp_path / "pytorch", {PIN: "v2.27.3-1\n", "third_party/README": "none"})
    repository(tree)
    return tree


@needs_git
def test_nccl_is_cloned_with_the_source_and_follows_an_update(place: Place, upstream: Path) -> None:
    source = SourceTable(use="git", git=GitSource(url=upstream.as_uri(), ref="main"))
    recipe = read_recipe(
        load_recipe_file("pytorch"), variant="cuda", version="2.9.0", machine="x86_64"
    )
    recipe = replace(recipe, source=source, options={**recipe.options, "BLAS": "OpenBLAS"})
    place.complete = lambda tree: download_actions(recipe, str(tree), place.downloads)
    place.fetch(source)
    header = place.destination / "third_party/nccl/nccl.h.in"
    assert header.read_text() == "one"
    first = place.identity(source).submodules
    assert list(first) == ["third_party/nccl"]
    write(upstream, {PIN: "v2.28.9-1\n"})
    commit(upstream, "newer")
    place.update(source)
    assert header.read_text() == "two"
    assert place.identity(source).submodules != first


@needs_git
def test_a_missing_tag_fails_the_fetch(place: Place, upstream: Path) -> None:
    source = SourceTable(use="git", git=GitSource(url=upstream.as_uri(), ref="main"))
    recipe = read_recipe(
        load_recipe_file("pytorch"), variant="cuda", version="2.9.0", machine="x86_64"
    )
    place.complete = lambda tree: download_actions(recipe, str(tree), place.downloads)
    write(upstream, {PIN: "v9\n"})
    commit(upstream, "no such tag")
    with pytest.raises(CommandFailed, match="v9"):
        place.fetch(source)
    assert not place.destination.exists()


def clone(tree: Path) -> subprocess.CompletedProcess[str]:
    recipe = read_recipe(
        load_recipe_file("pytorch"), variant="cuda", version="2.9.0", machine="x86_64"
    )
    command = download_actions(recipe, str(tree), tree)[0]
    assert isinstance(command, Command)
    return subprocess.run(command.argv, cwd=tree, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("pin", ["--upload-pack=touch x", "", "a b", "v1\nv2"])
def test_a_pin_file_cannot_pass_options_to_git(pin: str, tmp_path: Path) -> None:
    write(tmp_path, {PIN: pin})
    ended = clone(tmp_path)
    assert ended.returncode == 1
    assert "does not contain a tag" in ended.stderr


def test_a_tree_without_the_pin_needs_no_download(tmp_path: Path) -> None:
    ended = clone(tmp_path)
    assert (ended.returncode, ended.stdout) == (
        0,
        "nccl: not pinned by this tree, so not downloaded\n",
    )


def test_eigen_is_required_only_where_it_is_the_blas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in GIT_VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "url.file:///nonexistent/.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://gitlab.com/")
    write(tmp_path, {"third_party/eigen_pin.txt": "5.0.0"})

    def code(settings: dict[str, Scalar]) -> int:
        recipe = read_recipe(
            load_recipe_file("pytorch"),
            variant="cpu",
            version="2.9.0",
            settings=settings,
            machine="aarch64",
        )
        (command,) = download_actions(recipe, str(tmp_path), tmp_path)
        assert isinstance(command, Command)
        return subprocess.run(command.argv, cwd=tmp_path, check=False).returncode

    assert code({}) == 0
    assert code({"BLAS": "Eigen"}) == 1
    assert not (tmp_path / "third_party/eigen").exists()


def test_a_tree_that_has_it_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, {PIN: "v2", "third_party/nccl/Makefile": "mine"})
    assert clone(tmp_path).stdout == "nccl: third_party/nccl is in the source tree\n"
    assert (tmp_path / "third_party/nccl/Makefile").read_text() == "mine"


# --- AOTriton ------------------------------------------------------------------------------------

CMAKE = """set(__AOTRITON_VER "0.8b")
set(__AOTRITON_MANYLINUX_LIST
    "manylinux_2_17"  # rocm6.1
    "manylinux_2_28"  # rocm6.3
    )
set(__AOTRITON_ROCM_LIST
    "rocm6.1"
    "rocm6.3"
    )
set(__AOTRITON_SHA256_LIST
    "{0}"  # rocm6.1
    "{1}"  # rocm6.3
    )
set(__AOTRITON_Z "gz")
"""


def archive(name: str, text: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


class RocmTree:
    """A source tree with AOTriton's CMake file, and a ROCm."""

    def __init__(self, folder: Path, server: FileServer, body: bytes, *, rocm: str) -> None:
        self.tree, self.rocm = folder / "tree", folder / "rocm"
        file = self.tree / "cmake/External/aotriton.cmake"
        file.parent.mkdir(parents=True)
        file.write_text(CMAKE.format("0" * 64, hashlib.sha256(body).hexdigest()))
        (self.rocm / ".info").mkdir(parents=True)
        (self.rocm / ".info/version").write_text(rocm)
        name = "/0.8b/aotriton-0.8b-manylinux_2_28_x86_64-rocm6.3-shared.tar.gz"
        server.replies[name] = Reply(body=body)
        self.address = server.address
        (self.tree / "third_party").mkdir()

    def download(self) -> subprocess.CompletedProcess[str]:
        words = ("third_party/aotriton", "cmake/External/aotriton.cmake", self.address)
        argv = [sys.executable, str(PROGRAM), str(self.tree), *words, str(self.rocm)]
        return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_aotriton_for_this_rocm(tmp_path: Path, server: FileServer) -> None:
    tree = RocmTree(
        tmp_path, server, archive("aotriton/lib/libaotriton_v2.so", "x"), rocm="6.4.1-83"
    )
    ended = tree.download()
    assert ended.returncode == 0, ended.stderr
    assert (tree.tree / "third_party/aotriton/lib/libaotriton_v2.so").read_text() == "x"
    assert [path.name for path in (tree.tree / "third_party").iterdir()] == ["aotriton"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"another file", "has the SHA-256"),
        (archive("../evil", "x"), "unsafe name"),
        (archive("/evil", "x"), "unsafe name"),
    ],
    ids=["another file", "name above the folder", "absolute name"],
)
def test_a_wrong_archive_is_refused(
    body: bytes, message: str, tmp_path: Path, server: FileServer
) -> None:
    tree = RocmTree(tmp_path, server, body, rocm="6.3.0")
    if message == "has the SHA-256":
        reply = next(iter(server.replies.values()))
        reply.body = b"changed on the way"
    ended = tree.download()
    assert ended.returncode == 1
    assert message in ended.stderr
    assert not (tree.tree / "third_party/aotriton").exists()


def test_without_rocm_the_message_says_what_to_do(tmp_path: Path, server: FileServer) -> None:
    tree = RocmTree(tmp_path, server, b"", rocm="6.3")
    (tree.rocm / ".info/version").unlink()
    assert "install ROCm" in tree.download().stderr


def test_a_tree_without_aotriton_or_without_its_archive(tmp_path: Path, server: FileServer) -> None:
    tree = RocmTree(tmp_path, server, b"", rocm="6.3")
    file = tree.tree / "cmake/External/aotriton.cmake"
    file.write_text("ExternalProject_Add(aotriton GIT_REPOSITORY x)\n")
    ended = tree.download()
    assert (ended.returncode, "AOTRITON_INSTALLED_PREFIX" in ended.stderr) == (1, True)
    file.unlink()
    assert tree.download().returncode == 0


@pytest.mark.parametrize(
    ("rocm", "chosen"),
    [((6, 0), "rocm6.1"), ((6, 2), "rocm6.1"), ((6, 3), "rocm6.3"), ((7, 0), "rocm6.3")],
)
def test_which_archive(rocm: tuple[int, int], chosen: str) -> None:
    ((name, _),) = aotriton_files(CMAKE.format("a", "b"), "", rocm)
    assert chosen in name


@pytest.mark.parametrize(
    ("rocm", "chosen"), [((6, 1), "manylinux_2_17"), ((6, 2), "manylinux_2_28"), ((7, 0), "2_28")]
)
def test_which_archive_of_a_version_file_with_lists(rocm: tuple[int, int], chosen: str) -> None:
    cmake = "file(STRINGS .ci/docker/aotriton_version.txt __AOTRITON_CI_INFO)"
    pinned = "0.8b\nmanylinux_2_17;manylinux_2_28\nrocm6.1;rocm6.2\ncommit\nfirst;second\nbz2\n"
    ((name, checksum),) = aotriton_files(cmake, pinned, rocm)
    assert chosen in name
    assert name.endswith(".tar.bz2")
    assert checksum == ("first" if rocm == (6, 1) else "second")
    assert aotriton_files(cmake, pinned.replace("first;", ""), rocm) == []


@pytest.mark.parametrize("release", known_releases("pytorch"))
def test_nccl_extensions_are_fetched_on_request(release: str) -> None:
    minor = int(release.partition(".")[2])
    assert "nccl-extensions" not in downloads("cuda", f"{release}.0")
    wanted = "nccl-extensions" in downloads("cuda", f"{release}.0", {"USE_NCCL_EP": True})
    assert wanted == (minor >= 13)
    without = {"USE_DISTRIBUTED": False}
    assert ("nccl" in downloads("cuda", f"{release}.0", without)) == (minor == 7)


@pytest.mark.parametrize(
    ("cuda", "first"), [("12.6.3", "nccl-cu126.txt"), ("13.0", "nccl-cu130.txt"), ("", "nccl-cu12")]
)
def test_the_pin_of_the_chosen_cuda_comes_first(cuda: str, first: str, tmp_path: Path) -> None:
    settings: dict[str, Scalar] = {"environment.cuda": cuda} if cuda else {}
    recipe = read_recipe(
        load_recipe_file("pytorch"),
        variant="cuda",
        version="2.13.0",
        settings=settings,
        machine="x86_64",
    )
    (nccl, *_) = download_actions(recipe, str(tmp_path), tmp_path)
    assert isinstance(nccl, Command)
    pins = [word for word in nccl.argv if word.endswith(".txt")]
    assert first in pins[0]
    assert not any("{" in pin for pin in pins)


# --- the source of a release ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree() -> Path:
    """The source of PyTorch 2.6.0: Debian's package, or a checkout."""
    folder = Path(os.environ.get(SOURCE_VARIABLE, "/nonexistent"))
    if not (folder / "cmake/Dependencies.cmake").is_file():
        pytest.skip(f"needs a source tree of PyTorch 2.6.0 in {SOURCE_VARIABLE}")
    return folder


def test_the_files_of_the_table_exist(tree: Path) -> None:
    items = [item for item in all_configure_downloads() if item.name != "nccl-extensions"]
    for item in items:  # 2.6 has none of the excluded one
        assert (tree / item.cmake_file).is_file(), item.cmake_file


def test_aotriton_of_the_release_is_read(tree: Path) -> None:
    text = (tree / "cmake/External/aotriton.cmake").read_text()
    # Debian's package lacks the folder .ci; the CMake file says which lines it has.
    for number, name in enumerate(("VER", "MANYLINUX", "ROCM", "COMMIT", "SHA256")):
        assert f"list(GET __AOTRITON_CI_INFO {number} __AOTRITON_{name})" in text
    pinned = f"0.8b\nmanylinux_2_28\nrocm6.2\ncommit\n{'a' * 64}\n"
    assert aotriton_files(text, pinned, (6, 2)) == [
        ("0.8b/aotriton-0.8b-manylinux_2_28_x86_64-rocm6.2-shared.tar.gz", "a" * 64)
    ]
    assert aotriton_files(text, "", (6, 2)) == []


def test_nccl_of_the_release_is_a_submodule(tree: Path) -> None:
    text = (tree / "cmake/External/nccl.cmake").read_text()
    assert "third_party/nccl/nccl" in text
    assert "GIT_REPOSITORY" not in text


def test_six_is_not_named_to_nnpack(tree: Path) -> None:
    text = (tree / "cmake/External/nnpack.cmake").read_text()
    assert "PYTHON_PEACHPY_SOURCE_DIR" in text
    assert "PYTHON_SIX_SOURCE_DIR" not in text, "the recipe sets it"


_FETCHES = re.compile(
    r"^[^#\n]*\b(?:file\s*\(\s*DOWNLOAD|FetchContent_\w+|GIT_REPOSITORY|git\s+clone|URL\s+[\"$h])",
    re.MULTILINE,
)


def test_no_other_cmake_file_downloads(tree: Path) -> None:
    """A download that a release adds must be added to the table."""
    files = [
        *tree.glob("cmake/**/*.cmake"),
        tree / "CMakeLists.txt",
        *tree.glob("caffe2/**/CMakeLists.txt"),
    ]
    files += [*tree.glob("aten/**/CMakeLists.txt"), *tree.glob("torch/CMakeLists.txt")]
    fetching = {
        str(path.relative_to(tree))
        for path in files
        if _FETCHES.search(path.read_text(errors="replace"))
    }
    listed = {item.cmake_file for item in all_configure_downloads()}
    for_xpu = {"cmake/Modules/FindMKLDNN.cmake", "caffe2/CMakeLists.txt"}
    downloads_of_qnnpack = {name for name in fetching if "qnnpack" in name}
    assert fetching - listed - for_xpu - downloads_of_qnnpack == set(), fetching
