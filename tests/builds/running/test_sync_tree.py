"""Synchronization of two folders: only differences are written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchyard.builds.running import sync_tree
from torchyard.builds.running.sync_tree import first_edit, list_files, sync

OLD_NS = 1_600_000_000_000_000_000


class Workspace:
    """A tree that was copied from a source, and a new copy beside it."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.source, self.tree, self.new = folder / "source", folder / "tree", folder / "new"
        self.listed, self.state = folder / "tree.listed", folder / "state.json"
        for place in (self.source, self.tree, self.new):
            put(place, files)
        list_files(self.source, self.listed)
        self.state.write_text("built")

    def sync(self) -> int:
        return sync(self.new, self.tree, self.listed, self.state)

    def times(self) -> dict[str, int]:
        return {name: (self.tree / name).stat().st_mtime_ns for name in names(self.tree)}


def put(place: Path, files: dict[str, str]) -> None:
    place.mkdir(exist_ok=True)
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, ns=(OLD_NS, OLD_NS))


def names(place: Path) -> list[str]:
    return sorted(
        str(path.relative_to(place))
        for path in place.rglob("*")
        if path.is_symlink() or path.is_file()
    )


def test_what_is_the_same_keeps_its_time(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, {"a.c": "1", "b/c.c": "2"})
    os.utime(workspace.new / "a.c")  # a patch that was applied anew gives the same text
    assert workspace.sync() == 0
    assert set(workspace.times().values()) == {OLD_NS}
    assert workspace.state.exists(), "nothing changed, so what was built still holds"
    assert not workspace.new.exists()


def test_what_differs_gets_the_new_text_and_the_present_time(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, {"a.c": "1", "b/c.c": "2"})
    put(
        workspace.new, {"a.c": "3", "d/e.c": "4"}
    )  # with an old time, as a checkout of old files has
    assert workspace.sync() == 2
    assert (workspace.tree / "a.c").read_text() == "3"
    assert (workspace.tree / "d/e.c").read_text() == "4"
    times = workspace.times()
    assert times["b/c.c"] == OLD_NS
    assert times["a.c"] > OLD_NS
    assert not workspace.state.exists()


def test_what_the_source_has_no_longer_goes_and_what_was_built_stays(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, {"a.c": "1", "gone/x.c": "2", "gone/more/y.c": "3"})
    put(workspace.tree, {"build/a.o": "object", "generated.h": "made"})
    for name in ("gone/x.c", "gone/more/y.c"):
        (workspace.new / name).unlink()
    assert workspace.sync() == 2
    assert names(workspace.tree) == ["a.c", "build/a.o", "generated.h"]
    assert not (workspace.tree / "gone").exists()
    assert not workspace.state.exists()


def test_a_folder_with_objects_in_it_stays(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, {"a.c": "1", "part/x.c": "2"})
    put(workspace.tree, {"part/x.o": "object"})
    (workspace.new / "part/x.c").unlink()
    workspace.sync()
    assert names(workspace.tree) == ["a.c", "part/x.o"]


def test_the_list_is_of_the_new_copy_afterwards(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, {"a.c": "1"})
    put(workspace.new, {"b.c": "2"})
    workspace.sync()
    put(workspace.new, {"a.c": "1"})
    assert workspace.sync() == 1, "b.c came with the first and goes with the second"
    assert names(workspace.tree) == ["a.c"]


def test_an_interrupted_sync_is_completed(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, {"a.c": "1", "b.c": "2"})
    (workspace.new / "b.c").unlink()
    put(workspace.new, {"a.c": "3"})
    workspace.sync()
    # As if it was killed before its end: the list is the old one, part of the work is done.
    list_files(workspace.source, workspace.listed)
    put(workspace.tree, {"b.c": "2"})
    put(workspace.new, {"a.c": "3"})
    assert workspace.sync() == 1
    assert names(workspace.tree) == ["a.c"]


def test_without_a_list_nothing_is_removed(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, {"a.c": "1", "b.c": "2"})
    workspace.listed.unlink()
    (workspace.new / "b.c").unlink()
    assert workspace.sync() == 0
    assert names(workspace.tree) == ["a.c", "b.c"]


def test_links_are_links_and_never_followed(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, {"a.c": "1"})
    outside = tmp_path / "outside"
    put(outside, {"mine": "kept"})
    (workspace.tree / "link").symlink_to(outside)
    (workspace.new / "link").symlink_to("a.c")
    (workspace.tree / "folder").symlink_to(outside)
    put(workspace.new, {"folder/mine": "theirs"})
    workspace.sync()
    assert (workspace.tree / "link").readlink() == Path("a.c")
    assert (outside / "mine").read_text() == "kept"
    assert (workspace.tree / "folder/mine").read_text() == "theirs"
    assert not (workspace.tree / "folder").is_symlink()


def test_a_file_becomes_a_folder_and_back(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, {"a": "file", "b/c": "folder"})
    (workspace.new / "a").unlink()
    (workspace.new / "b/c").unlink()
    (workspace.new / "b").rmdir()
    put(workspace.new, {"a/inside": "1", "b": "2"})
    workspace.sync()
    assert (workspace.tree / "a/inside").read_text() == "1"
    assert (workspace.tree / "b").read_text() == "2"


def test_a_changed_mode_is_a_change(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, {"run.sh": "#!/bin/sh\n"})
    (workspace.new / "run.sh").chmod(0o755)
    assert workspace.sync() == 1
    assert os.access(workspace.tree / "run.sh", os.X_OK)


def test_git_folders_come_as_a_whole(tmp_path: Path) -> None:
    workspace = Workspace(
        tmp_path, {"a.c": "1", ".git/HEAD": "old", ".git/stale": "x", "sub/.git/HEAD": "o"}
    )
    put(workspace.new, {".git/HEAD": "new", "sub/.git/HEAD": "n"})
    (workspace.new / ".git/stale").unlink()
    assert workspace.sync() == 0, "what git keeps is nothing to compile"
    assert workspace.state.exists()
    assert (workspace.tree / ".git/HEAD").read_text() == "new"
    assert (workspace.tree / "sub/.git/HEAD").read_text() == "n"
    assert not (workspace.tree / ".git/stale").exists()


def test_odd_names(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, {"a\nb.c": "1", "ü.c": "2", "-rf": "3"})
    with_bytes = os.fsdecode(b"raw\xff.c")
    put(workspace.new, {with_bytes: "4"})
    (workspace.new / "a\nb.c").unlink()
    assert workspace.sync() == 2
    assert names(workspace.tree) == sorted(["-rf", "ü.c", with_bytes])


def test_first_edit(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, {"a.c": "1", "b.c": "2"})
    assert first_edit(workspace.source, workspace.tree) == ""
    put(workspace.tree, {"built.o": "object"})
    (workspace.tree / "a.c").unlink()
    assert first_edit(workspace.source, workspace.tree) == "", (
        "neither built nor removed files are edits"
    )
    (workspace.tree / "b.c").write_text("3")
    assert first_edit(workspace.source, workspace.tree) == "b.c"
    assert first_edit(workspace.source, tmp_path / "none") == ""


def test_it_is_a_program(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, {"a.c": "1"})
    put(workspace.new, {"a.c": "2"})
    program = [sys.executable, "-I", "-S", sync_tree.__file__]
    subprocess.run([*program, "list", str(workspace.source), str(workspace.listed)], check=True)
    words = [
        str(path) for path in (workspace.new, workspace.tree, workspace.listed, workspace.state)
    ]
    done = subprocess.run([*program, "sync", *words], check=True, capture_output=True, text=True)
    assert done.stdout == "1 files changed or removed\n"
    assert (workspace.tree / "a.c").read_text() == "2"


FILES = st.dictionaries(
    st.sampled_from(["a", "b", "d/a", "d/b", "e/f/g"]), st.text("xy", max_size=2), max_size=5
)


@given(before=FILES, after=FILES, built=st.sets(st.sampled_from(["o", "d/o", "n/o"])))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_tree_is_what_a_fresh_copy_would_be_plus_what_was_built(
    tmp_path_factory: pytest.TempPathFactory,
    before: dict[str, str],
    after: dict[str, str],
    built: set[str],
) -> None:
    workspace = Workspace(tmp_path_factory.mktemp("sync"), before)
    put(workspace.tree, dict.fromkeys(built, "object"))
    for name in names(workspace.new):
        (workspace.new / name).unlink()
    put(workspace.new, after)
    count = workspace.sync()
    found = {name: (workspace.tree / name).read_text() for name in names(workspace.tree)}
    assert found == {**after, **dict.fromkeys(built, "object")}
    assert (count == 0) == (before == after) == workspace.state.exists()
