"""Core isolation with fake control groups of version 1: all tasks move, and back."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.machine.cgroup_machines import V1, add_task, cycle_on, members
from torchyard.errors import NotAllowed
from torchyard.machine.knobs.cores import Isolation, join
from torchyard.machine.model import QuietRequest


def test_all_tasks_move_to_the_housekeeping_cores_and_back(tmp_path: Path) -> None:
    round_ = cycle_on("cgroup-v1", tmp_path)
    add_task(round_, 15, V1, bound=True)
    add_task(round_, 901, f"{V1}/docker")
    round_.found = round_.kernel.snapshot()
    round_.tune(cores=(2, 3))
    assert [change.state for change in round_.changes] == ["written"]
    housekeeping = f"{V1}/torchyard/house"
    assert members(round_, V1) == [15], "bound to its processor"
    assert members(round_, housekeeping) == [1, 2, 700]
    assert members(round_, f"{housekeeping}/docker") == [901]
    assert members(round_, f"{housekeeping}/docker/4f1c2a") == [2000]
    assert round_.text(f"{housekeeping}/cpuset.cpus") == "0-1,4-7"
    assert round_.text(f"{housekeeping}/docker/4f1c2a/cpuset.cpus") == "0-1", (
        "half of the machine, less ours"
    )
    assert round_.text(f"{V1}/torchyard/measure/cpuset.cpus") == "2-3"
    assert round_.state("isolation").notes == (
        "1 kernel threads are bound to CPUs and stay on the cores",
        "5 tasks are moved to the housekeeping cores; containers started later are not",
    )
    round_.restore()
    assert round_.left() == {}


def test_a_task_that_appears_after_its_parent_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel lists a task when starting it ends; its parent may be elsewhere by then."""
    round_ = cycle_on("cgroup-v1", tmp_path)
    add_task(round_, 901, f"{V1}/docker")

    def pause(seconds: float) -> None:
        if seconds and not members(round_, f"{V1}/docker"):
            add_task(round_, 902, f"{V1}/docker")

    monkeypatch.setattr("time.sleep", pause)
    round_.tune(cores=(2, 3))
    assert members(round_, f"{V1}/docker") == []
    assert members(round_, f"{V1}/torchyard/house/docker") == [901, 902]


def test_groups_that_are_elsewhere_anyway_are_left_alone(tmp_path: Path) -> None:
    round_ = cycle_on("cgroup-v1", tmp_path)
    round_.tune(cores=(6, 7))
    assert members(round_, f"{V1}/docker/4f1c2a") == [2000]
    assert not round_.kernel.exists(f"{V1}/torchyard/house/docker")
    round_.restore()
    assert round_.left() == {}


def test_a_group_whose_cores_are_all_taken_gets_the_housekeeping_cores(tmp_path: Path) -> None:
    round_ = cycle_on("cgroup-v1", tmp_path)
    round_.tune(cores=(0, 1, 2, 3))
    assert round_.text(f"{V1}/torchyard/house/docker/4f1c2a/cpuset.cpus") == "4-7"
    round_.restore()
    assert round_.left() == {}


def test_tasks_that_died_and_new_ones_are_no_obstacle(tmp_path: Path) -> None:
    round_ = cycle_on("cgroup-v1", tmp_path)
    add_task(round_, 901, f"{V1}/docker")
    round_.tune(cores=(2, 3))
    housekeeping = f"{V1}/torchyard/house"
    # 901 dies; its parent and a shell have children, which the kernel puts where these are.
    for file in ("tasks", "cgroup.procs"):
        round_.kernel.path(f"{housekeeping}/docker/{file}").write_text("")
    add_task(round_, 5001, f"{housekeeping}/docker/4f1c2a")
    add_task(round_, 5002, housekeeping)
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert members(round_, f"{V1}/docker/4f1c2a") == [2000, 5001]
    assert members(round_, V1) == [1, 2, 700, 5002]
    assert members(round_, f"{V1}/docker") == []
    assert not round_.kernel.exists(f"{V1}/torchyard")


def test_a_task_that_ends_while_it_is_moved(tmp_path: Path) -> None:
    round_ = cycle_on("cgroup-v1", tmp_path)
    for file in ("tasks", "cgroup.procs"):
        place = round_.kernel.path(f"{V1}/{file}")
        place.write_text(place.read_text() + "3999\n")
    original = round_.kernel.write

    def write(path: str, value: str) -> None:
        if value == "3999":
            for file in ("tasks", "cgroup.procs"):
                place = round_.kernel.path(f"{V1}/{file}")
                place.write_text(place.read_text().replace("3999\n", ""))
        original(path, value)

    round_.kernel.write = write  # type: ignore[method-assign]
    round_.tune(cores=(2, 3))
    assert [change.state for change in round_.changes] == ["written"]
    assert members(round_, f"{V1}/torchyard/house") == [1, 2, 700]


def test_a_group_that_was_removed_meanwhile(tmp_path: Path) -> None:
    round_ = cycle_on("cgroup-v1", tmp_path)
    round_.tune(cores=(2, 3))
    round_.kernel.remove_folder(f"{V1}/docker/4f1c2a")
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert members(round_, f"{V1}/docker") == [2000]


def test_a_process_joins_from_the_housekeeping_cores(tmp_path: Path) -> None:
    round_ = cycle_on("cgroup-v1", tmp_path)
    round_.tune(cores=(2, 3))
    join(round_.machine, 2000)
    group = f"{V1}/torchyard/measure/docker/4f1c2a"
    assert members(round_, group) == [2000]
    assert round_.text(f"{group}/cpuset.cpus") == "2-3"
    assert round_.text(f"{group}/cpuset.mems") == round_.text(f"{V1}/docker/4f1c2a/cpuset.mems")
    round_.restore()
    assert round_.left() == {}


def test_a_refused_cpuset_is_removed_immediately(tmp_path: Path) -> None:
    round_ = cycle_on("cgroup-v1", tmp_path)
    round_.kernel.refuse(f"{V1}/torchyard/house/cpuset.mems", errno.EACCES)
    round_.tune(cores=(2, 3))
    assert [change.state for change in round_.changes] == ["refused"]
    assert round_.left() == {}


def test_second_threads_that_went_offline_since_the_survey(tmp_path: Path) -> None:
    round_ = cycle_on("cgroup-v1", tmp_path)
    (setting,) = round_.survey(cores=(2, 3))
    round_.kernel.write("sys/devices/system/cpu/smt/control", "off")
    assert round_.text("sys/devices/system/cpu/online") == "0-3"
    round_.knobs["isolation"].write(round_.machine, setting)
    assert round_.text(f"{V1}/torchyard/house/cpuset.cpus") == "0-1"
    round_.knobs["isolation"].restore(round_.machine, setting)
    assert not round_.kernel.exists(f"{V1}/torchyard")


def test_cores_beyond_the_group_are_refused(tmp_path: Path) -> None:
    round_ = cycle_on("cgroup-v1", tmp_path)
    knob = Isolation(base="docker/4f1c2a")
    (setting,) = knob.survey(round_.machine, QuietRequest(cores=(5,))).settings
    with pytest.raises(NotAllowed, match="cannot isolate cores"):
        knob.write(round_.machine, setting)
    assert round_.left() == {}


# Some of the tasks only.


def test_only_tasks_below_the_base_are_moved(tmp_path: Path) -> None:
    round_ = cycle_on("cgroup-v1", tmp_path)
    knob = Isolation(base="docker")
    add_task(round_, 901, f"{V1}/docker")
    round_.found = round_.kernel.snapshot()
    (setting,) = knob.survey(round_.machine, QuietRequest(cores=(2, 3))).settings
    knob.write(round_.machine, setting)
    assert members(round_, V1) == [1, 2, 700], "not below the base"
    assert members(round_, f"{V1}/docker/torchyard/house") == [901]
    assert members(round_, f"{V1}/docker/torchyard/house/4f1c2a") == [2000]
    join(round_.machine, 2000, base="docker")
    assert members(round_, f"{V1}/docker/torchyard/measure/4f1c2a") == [2000]
    with pytest.raises(NotAllowed, match="not a group below"):
        join(round_.machine, 700, base="docker")
    knob.restore(round_.machine, setting)
    assert round_.left() == {}
