"""Selection of the cores to isolate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machine.trees import make_tree
from torchyard.errors import UsageError
from torchyard.machine.system.cores import Topology, choose_cores
from torchyard.machine.system.file_tree import FileTree


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileTree]:
    """Two sockets with two threads per core; one node; one thread per core; SMT off at boot."""
    kinds = ("intel-pstate", "amd-epp", "arm-bare", "smt-off-at-boot")
    return {kind: FileTree(make_tree(kind, tmp_path_factory.mktemp(kind))) for kind in kinds}


@pytest.mark.parametrize(
    ("kind", "smt_off", "cores"),
    [
        ("intel-pstate", False, (2, 3, 6, 7)),
        ("intel-pstate", True, (2, 3)),
        ("amd-epp", False, (1, 2, 3, 5, 6, 7)),
        ("amd-epp", True, (1, 2, 3)),
        ("arm-bare", True, (1, 2, 3)),
        ("smt-off-at-boot", False, (1, 2, 3)),
    ],
)
def test_auto_takes_one_node_without_the_first_core(
    trees: dict[str, FileTree], kind: str, smt_off: bool, cores: tuple[int, ...]
) -> None:
    choice = choose_cores(trees[kind], "auto", smt_off=smt_off)
    assert (choice.cores, choice.notes) == (cores, ())


def test_a_list_is_taken_as_it_is(trees: dict[str, FileTree]) -> None:
    choice = choose_cores(trees["amd-epp"], "3,1-2,5-7")
    assert choice.cores == (1, 2, 3, 5, 6, 7)
    assert choice.notes == ()


def test_threads_that_share_a_core_with_housekeeping_are_noted(trees: dict[str, FileTree]) -> None:
    (note,) = choose_cores(trees["amd-epp"], "1-3").notes
    assert "5-7" in note
    assert "SMT" in note
    assert choose_cores(trees["amd-epp"], "1-3", smt_off=True).notes == ()


def test_the_first_processor_and_far_memory_are_noted(trees: dict[str, FileTree]) -> None:
    notes = choose_cores(trees["intel-pstate"], "0,4,2,6").notes
    assert any("CPU 0" in note for note in notes)
    assert any("NUMA nodes" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("9", "CPU 9 is not available"),
        ("1-12", "CPU 8-12 is not available"),
        ("", "invalid CPU list"),
        ("two", "invalid CPU list"),
        ("0-7", "no core for housekeeping"),
    ],
)
def test_wrong_lists_are_refused(trees: dict[str, FileTree], text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        choose_cores(trees["amd-epp"], text)
    assert "--cores" in caught.value.what
    assert caught.value.hint


def test_processors_that_are_offline_are_not_there(trees: dict[str, FileTree]) -> None:
    with pytest.raises(UsageError, match="CPU 5 is not available"):
        choose_cores(trees["smt-off-at-boot"], "5")


def test_second_threads_go_offline_with_smt(trees: dict[str, FileTree]) -> None:
    with pytest.raises(UsageError, match="CPU 5 is not available") as caught:
        choose_cores(trees["amd-epp"], "1,5", smt_off=True)
    assert "--without smt" in caught.value.hint
    with pytest.raises(UsageError, match="no core for housekeeping"):
        choose_cores(trees["amd-epp"], "0-3", smt_off=True)


def test_one_core_cannot_be_isolated(tmp_path: Path) -> None:
    cpu = tmp_path / "sys/devices/system/cpu"
    (cpu / "cpu0").mkdir(parents=True)
    (cpu / "online").write_text("0\n")
    with pytest.raises(UsageError, match="no core to isolate"):
        choose_cores(FileTree(tmp_path), "auto")


def test_a_machine_without_topology_has_one_node_and_single_threads(tmp_path: Path) -> None:
    cpu = tmp_path / "sys/devices/system/cpu"
    for number in range(4):
        (cpu / f"cpu{number}").mkdir(parents=True)
    topology = Topology.read(FileTree(tmp_path))
    assert topology.online == (0, 1, 2, 3)
    assert topology.physical == ((0,), (1,), (2,), (3,))
    assert topology.nodes == ((0, 1, 2, 3),)
    assert choose_cores(FileTree(tmp_path), "auto").cores == (1, 2, 3)


def test_siblings_and_what_is_left_without_them(trees: dict[str, FileTree]) -> None:
    topology = Topology.read(trees["intel-pstate"])
    assert topology.siblings(6) == (2, 6)
    assert topology.siblings(99) == (99,)
    assert topology.without_siblings().online == (0, 1, 2, 3)
    assert topology.without_siblings().nodes == ((0, 1), (2, 3))
