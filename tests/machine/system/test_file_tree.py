"""Reading and writing below a root, and lists and masks of processors."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.core.cpu_lists import MAX_CPUS, cpu_list, cpu_mask, cpus_of_list, cpus_of_mask
from torchyard.machine.system.file_tree import FileTree, WriteRefused

CPUS = st.lists(st.integers(min_value=0, max_value=600), max_size=40).map(tuple)


@pytest.fixture
def tree(tmp_path: Path) -> FileTree:
    folder = tmp_path / "sys/cpu"
    folder.mkdir(parents=True)
    for name in ("cpu10", "cpu2", "cpu1"):
        (folder / name).write_text(f"{name}\n")
    return FileTree(tmp_path)


@given(CPUS)
def test_a_list_says_the_same_processors(cpus: tuple[int, ...]) -> None:
    assert cpus_of_list(cpu_list(cpus)) == tuple(sorted(set(cpus)))


@given(CPUS)
def test_a_mask_says_the_same_processors(cpus: tuple[int, ...]) -> None:
    mask = cpu_mask(cpus)
    assert cpus_of_mask(mask) == tuple(sorted(set(cpus)))
    assert all(len(word) == 8 for word in mask.split(","))


@given(CPUS)
def test_a_list_has_no_two_parts_that_touch(cpus: tuple[int, ...]) -> None:
    parts = [part for part in cpu_list(cpus).split(",") if part]
    ends = [tuple(map(int, part.split("-"))) for part in parts]
    assert all(before[-1] + 1 < after[0] for before, after in pairwise(ends))


@given(st.text(max_size=40))
def test_any_text_is_processors_or_a_value_error(text: str) -> None:
    for read in (cpus_of_list, cpus_of_mask):
        try:
            cpus = read(text)
        except ValueError:
            continue
        assert all(0 <= cpu < MAX_CPUS for cpu in cpus)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", ()), ("\n", ()), ("0\n", (0,)), ("0-2,5", (0, 1, 2, 5)), ("3,1,1-2", (1, 2, 3))],
)
def test_lists_of_the_kernel(text: str, cpus: tuple[int, ...]) -> None:
    assert cpus_of_list(text) == cpus


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", ()),
        ("3", (0, 1)),
        ("0f\n", (0, 1, 2, 3)),
        ("1,00000000", (32,)),
        ("00000000,00000000", ()),
    ],
)
def test_masks_of_the_kernel(text: str, cpus: tuple[int, ...]) -> None:
    assert cpus_of_mask(text) == cpus


@pytest.mark.parametrize("text", ["a", "1-", "-1", "1-2-3", "0-7:1/2", "0-99999999999", "70000"])
def test_invalid_lists(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        cpus_of_list(text)


@pytest.mark.parametrize("text", ["-3", "0x3", "g", "1_0", "f" * (MAX_CPUS + 1)])
def test_invalid_masks(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        cpus_of_mask(text)


def test_paths_and_names_are_in_natural_order(tree: FileTree) -> None:
    assert tree.names("sys/cpu") == ["cpu1", "cpu2", "cpu10"]
    assert tree.paths("sys/cpu/cpu*") == ["sys/cpu/cpu1", "sys/cpu/cpu2", "sys/cpu/cpu10"]
    assert tree.names("nowhere") == []
    assert tree.paths("nowhere/*") == []


@given(st.lists(st.text(alphabet="cpu0123²٣é-", min_size=1, max_size=6), max_size=6))
def test_any_names_can_be_ordered(names: list[str]) -> None:
    from torchyard.machine.system.file_tree import _natural

    assert sorted(sorted(names, key=_natural)) == sorted(names)


def test_reading_takes_off_the_last_newline_only(tree: FileTree) -> None:
    tree.path("text").write_text(" a \nb\n")
    assert tree.read("text").value == " a \nb"
    tree.path("text").write_text("")
    assert tree.read("text").value == ""


def test_what_cannot_be_read_says_why(tree: FileTree) -> None:
    assert tree.read("nothing").because == "/nothing: No such file or directory"
    assert tree.read("sys").because == "/sys: Is a directory"
    assert "null" in tree.read("a\0b").because
    assert not tree.exists("a\0b")
    assert not tree.exists("sys/cpu/cpu1/below-a-file")


def test_undecodable_bytes_do_not_raise(tree: FileTree) -> None:
    tree.path("text").write_bytes(b"\xff\xfe 7\n")
    assert tree.read("text").value == "\ufffd\ufffd 7"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_this_user_may_not_see_is_unavailable(tree: FileTree) -> None:
    tree.path("sys/cpu").chmod(0)
    try:
        assert "Permission denied" in tree.read("sys/cpu/cpu1").because
        assert not tree.exists("sys/cpu/cpu1")
        assert tree.names("sys/cpu") == []
    finally:
        tree.path("sys/cpu").chmod(0o755)


@pytest.mark.parametrize(
    ("text", "number"),
    [("12\n", 12), (" 12 \n", 12), ("0x1f\n", 31), ("-1\n", -1), ("n/a\n", None), ("", None)],
)
def test_numbers(tree: FileTree, text: str, number: int | None) -> None:
    tree.path("text").write_text(text)
    assert tree.read("text").number == number


def test_writing_replaces_and_never_makes_a_file(tree: FileTree) -> None:
    tree.write("sys/cpu/cpu1", "0")
    assert tree.read("sys/cpu/cpu1").value == "0"
    with pytest.raises(WriteRefused) as refused:
        tree.write("sys/cpu/cpu9", "0")
    assert "/sys/cpu/cpu9" in refused.value.what
    assert not tree.exists("sys/cpu/cpu9")


def test_an_open_file_is_read_again(tree: FileTree) -> None:
    held = tree.hold("sys/cpu/cpu1")
    assert held.read() == b"cpu1\n"
    tree.write("sys/cpu/cpu1", "now\n")
    assert held.read() == b"now\n"
    held.close()
    held.close()
    assert held.read() == b""
    assert tree.hold("nothing").because == "/nothing: No such file or directory"


def test_only_the_whole_machine_is_live(tree: FileTree) -> None:
    assert FileTree().live
    assert not tree.live
