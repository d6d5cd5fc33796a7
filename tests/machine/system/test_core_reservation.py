"""Which cores a sweep reserves for the timed cell, and why none."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchyard.core.cpu_lists import cpu_list
from torchyard.core.study import (
    SCRIPT_SUITE,
    Environment,
    MeasureSettings,
    Study,
    Target,
    Variant,
    Workload,
)
from torchyard.errors import UsageError
from torchyard.machine.system.core_reservation import CoreReservation, reserve_cores
from torchyard.machine.system.file_tree import FileTree

HERE = Target(name="here", python=sys.executable)
EAGER = Variant(name="eager", target=HERE)


def study_of(
    *,
    device: str = "cuda",
    environment: Environment | None = None,
    threads: int | None = None,
    **workload: Any,
) -> Study:
    candidate = Variant(name="inductor", target=HERE, backend="inductor")
    if environment is not None:
        candidate = replace(candidate, environment=environment)
    return Study(
        name="cell",
        baseline=EAGER,
        candidates=(candidate,),
        workloads=(
            Workload(**{"suite": "models", "name": "resnet", "device": device, **workload}),
        ),
        settings=MeasureSettings(threads=threads),
    )


def machine(folder: Path, cores: int, *, siblings: int = 1, quota: str = "") -> FileTree:
    """A machine with this many physical cores; CPU `c + k * cores` is thread `k` of core `c`."""
    cpus = folder / "sys/devices/system/cpu"
    for cpu in range(cores * siblings):
        threads = [cpu % cores + thread * cores for thread in range(siblings)]
        path = cpus / f"cpu{cpu}/topology/thread_siblings_list"
        path.parent.mkdir(parents=True)
        path.write_text(cpu_list(tuple(threads)) + "\n")
    (cpus / "online").write_text(f"0-{cores * siblings - 1}\n")
    group = folder / "sys/fs/cgroup/box"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(quota or "max 100000\n")
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text("0::/box\n")
    return FileTree(folder)


def reserved(files: FileTree, cpus: int, *studies: Study, **options: Any) -> CoreReservation:
    return reserve_cores(
        studies or [study_of()], at_most=6, usable=range(cpus), files=files, **options
    )


@pytest.mark.parametrize(
    ("cores", "timed", "preparing"),
    [
        (4, (2, 3), (0, 1)),
        (8, (6, 7), tuple(range(6))),
        (16, (12, 13, 14, 15), tuple(range(12))),
        (64, (60, 61, 62, 63), tuple(range(60))),
    ],
)
def test_a_quarter_of_the_cores_is_reserved(
    tmp_path: Path, cores: int, timed: tuple[int, ...], preparing: tuple[int, ...]
) -> None:
    choice = reserved(machine(tmp_path, cores), cores)
    assert (choice.timed, choice.preparing, choice.why_not) == (timed, preparing, "")


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_small_machines_pause_instead(tmp_path: Path, cores: int) -> None:
    choice = reserved(machine(tmp_path, cores), cores)
    assert choice.timed == ()
    assert f"{cores} cores are too few" in choice.why_not
    assert choice.text.startswith("others are paused while one is timed")


def test_this_machine_with_two_cores_pauses() -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    assert reserve_cores([study_of()], at_most=6, usable=cpus).why_not


def test_siblings_of_reserved_cores_are_reserved(tmp_path: Path) -> None:
    choice = reserved(machine(tmp_path, 8, siblings=2), 16)
    assert choice.timed == (6, 7, 14, 15)
    assert not set(choice.timed) & set(choice.preparing)
    odd = reserved(machine(tmp_path / "odd", 8, siblings=2), 16, requested=3)
    assert odd.timed == (6, 7, 14, 15), "half a core would share it with preparing cells"


def test_only_usable_cores_count(tmp_path: Path) -> None:
    files = machine(tmp_path, 16)
    choice = reserve_cores([study_of()], at_most=6, usable=[3, 5, 7, 9], files=files)
    assert (choice.timed, choice.preparing) == ((7, 9), (3, 5))


@pytest.mark.parametrize(
    ("quota", "reserves"), [("800000 100000", False), ("1600000 100000", True)]
)
def test_a_quota_that_all_cells_share_pauses(tmp_path: Path, quota: str, reserves: bool) -> None:
    choice = reserved(machine(tmp_path, 16, quota=quota), 16)
    assert bool(choice.timed) is reserves
    assert ("quota of 8 CPUs" in choice.why_not) is not reserves


@pytest.mark.parametrize(
    ("study", "reason"),
    [
        (study_of(device="cpu"), "memory bandwidth"),
        (study_of(environment=Environment(name="e", cores="0-3")), "bound to cores"),
        (study_of(environment=Environment(name="e", memory="bind:0")), "bound to cores"),
        (study_of(environment=Environment(name="e", instances=2)), "bound to cores"),
        (
            study_of(environment=Environment(name="e", variables=(("OMP_PROC_BIND", "true"),))),
            "bound",
        ),
        (study_of(ranks=2), "processes of its own"),
        (study_of(suite=SCRIPT_SUITE, name="train.py"), "processes of its own"),
        (study_of(threads=15), "timing needs 15"),
        (study_of(environment=Environment(name="e", threads=15)), "timing needs 15"),
    ],
)
def test_one_cell_that_cannot_be_moved_pauses_all(
    tmp_path: Path, study: Study, reason: str
) -> None:
    choice = reserved(machine(tmp_path, 16), 16, study_of(), study)
    assert choice.timed == ()
    assert reason in choice.why_not


def test_threads_get_a_core_each(tmp_path: Path) -> None:
    assert len(reserved(machine(tmp_path, 16), 16, study_of(threads=6)).timed) == 6


def test_variables_of_the_user_that_bind_threads_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOMP_CPU_AFFINITY", "0-3")
    assert "bound" in reserved(machine(tmp_path, 16), 16).why_not


def test_the_user_decides(tmp_path: Path) -> None:
    files = machine(tmp_path, 16)
    assert len(reserved(files, 16, requested=7).timed) == 7
    assert len(reserved(files, 16, study_of(device="cpu"), requested=4).timed) == 4
    assert reserved(files, 16, requested=0).why_not == "no cores are reserved"
    assert reserved(files, 2, requested=1).timed == (1,)
    for study, count in ((study_of(), 16), (study_of(ranks=2), 4), (study_of(threads=6), 4)):
        with pytest.raises(UsageError, match=f"cannot reserve {count} cores") as caught:
            reserved(files, 16, study, requested=count)
        assert "--reserve-cores 0" in caught.value.hint


def test_one_cell_at_a_time_reserves_nothing(tmp_path: Path) -> None:
    files = machine(tmp_path, 16)
    assert not reserve_cores([study_of()], at_most=1, usable=range(16), files=files).timed
