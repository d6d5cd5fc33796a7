from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.builds.sources.fetching import Place
from torchyard.builds.recipe import FolderSource, SourceTable
from torchyard.builds.sources.local_folder import tree_digest
from torchyard.errors import UsageError

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def source(folder: Path) -> SourceTable:
    return SourceTable(folder=FolderSource(path=str(folder)))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "-a tree"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.c").write_text("int a;", encoding="utf-8")
    (folder / ".hidden").touch()
    (folder / "link").symlink_to("src/a.c")
    return folder


def git(folder: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    argv = ("git", "-C", str(folder), *settings, *arguments)
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def test_everything_is_copied(tree: Path, place: Place) -> None:
    place.fetch(source(tree))
    assert (place.destination / "src" / "a.c").read_text(encoding="utf-8") == "int a;"
    assert (place.destination / ".hidden").exists()
    assert (place.destination / "link").is_symlink()
    # The copy is a copy: changing it changes nothing in the original.
    (place.destination / "src" / "a.c").write_text("changed", encoding="utf-8")
    assert (tree / "src" / "a.c").read_text(encoding="utf-8") == "int a;"


def test_without_git_the_identity_says_what_was_digested(tree: Path, place: Place) -> None:
    place.fetch(source(tree))
    identity = place.identity(source(tree))
    assert identity.commit == ""
    assert identity.digest.startswith("sha256 of names, sizes and times: ")
    assert identity.digest == tree_digest(tree), "cp -a keeps times"
    assert identity.origin == str(tree)


def test_the_digest_sees_changes(tree: Path) -> None:
    seen = [tree_digest(tree)]
    (tree / "src" / "a.c").write_text("int b; ", encoding="utf-8")
    seen.append(tree_digest(tree))
    (tree / "src" / "a.c").rename(tree / "src" / "b.c")
    seen.append(tree_digest(tree))
    os.utime(tree / "src" / "b.c", (1, 1))
    seen.append(tree_digest(tree))
    (tree / "src" / "b.c").chmod(0o755)
    seen.append(tree_digest(tree))
    (tree / "empty").mkdir()
    seen.append(tree_digest(tree))
    assert len(set(seen)) == len(seen)


def test_a_change_is_an_input_of_the_step(tree: Path, place: Place) -> None:
    before = place.plan(source(tree))
    again = place.plan(source(tree))
    (tree / "new").touch()
    after = place.plan(source(tree))
    assert before == again
    assert before.actions == after.actions
    assert before.inputs != after.inputs


@needs_git
def test_a_git_tree_is_known_by_its_commit(tree: Path, place: Place) -> None:
    git(tree, "init", "-q")
    git(tree, "add", "--all")
    git(tree, "commit", "-q", "-m", "one")
    place.fetch(source(tree))
    identity = place.identity(source(tree))
    assert identity.commit == git(tree, "rev-parse", "HEAD")
    assert not identity.dirty
    assert identity.digest == ""
    assert (place.destination / ".git").is_dir()


@needs_git
@pytest.mark.parametrize("change", ["edited", "untracked"])
def test_a_dirty_git_tree_says_so(tree: Path, place: Place, change: str) -> None:
    git(tree, "init", "-q")
    git(tree, "add", "--all")
    git(tree, "commit", "-q", "-m", "one")
    name = "src/a.c" if change == "edited" else "src/new.c"
    (tree / name).write_text("int more;", encoding="utf-8")
    place.fetch(source(tree))
    identity = place.identity(source(tree))
    assert identity.dirty
    assert identity.digest == tree_digest(tree)


@needs_git
def test_a_plain_folder_inside_a_repository_has_no_commit(tree: Path, place: Place) -> None:
    home = place.destination.parent
    git(home, "init", "-q")
    (home / "file").touch()
    git(home, "add", "file")
    git(home, "commit", "-q", "-m", "one")
    place.fetch(source(tree))
    assert place.identity(source(tree)).commit == ""


def test_update_copies_the_present_state(tree: Path, place: Place) -> None:
    place.fetch(source(tree))
    (tree / ".hidden").unlink()
    (tree / "new").touch()
    place.update(source(tree))
    assert (place.destination / "new").exists()
    assert not (place.destination / ".hidden").exists()


def test_a_copy_inside_the_folder_is_refused(tmp_path: Path, place: Place) -> None:
    with pytest.raises(UsageError) as caught:
        place.plan(source(tmp_path))
    assert "contains the destination of the copy" in caught.value.what
    assert "TORCHYARD_HOME" in caught.value.hint


def test_left_over_work_is_not_mixed_in(tree: Path, place: Place) -> None:
    place.part.mkdir()
    (place.part / "left over").touch()
    place.fetch(source(tree))
    assert not (place.destination / "left over").exists()
