"""Cores set apart in fake control groups of both versions, and taken down without a trace."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from fake_kernel import FakeKernel
from knob_rounds import Round
from trees import KINDS, make_tree

from torchyard.core.machine import Setting, Wish
from torchyard.errors import MissingTool, NotAllowed
from torchyard.machine.file_tree import cpu_list, cpus_of_list
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.knobs.isolation import Isolation, join, joining

V1 = "sys/fs/cgroup/cpuset"
V2 = "sys/fs/cgroup"
SESSION = "user.slice/user-1000.slice/session-2.scope"


def round_on(kind: str, folder: Path) -> Round:
    kernel = FakeKernel(make_tree(kind, folder / "root"))
    return Round(kernel, folder, {"isolation": KNOBS["isolation"]})


def last_core(round_: Round) -> int:
    return cpus_of_list(round_.text("sys/devices/system/cpu/online"))[-1]


def add_task(round_: Round, number: int, group: str, *, bound: bool = False) -> None:
    """A task that was started, or a thread of the kernel, in a group of a fake machine."""
    kernel = round_.kernel
    version_1 = kernel.exists(f"{V1}/tasks")
    path = group.removeprefix(V1 if version_1 else V2) or "/"
    flags = 0x04200040 if bound else 0x400000
    kernel.put(
        f"proc/{number}/stat",
        f"{number} (task {number}) S 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {number}00 0 0",
    )
    kernel.put(f"proc/{number}/comm", f"task {number}")
    kernel.put(f"proc/{number}/cgroup", f"1:cpuset:{path}" if version_1 else f"0::{path}")
    online = kernel.text("sys/devices/system/cpu/online")
    kernel.put(f"proc/{number}/status", f"Name:\ttask\nCpus_allowed_list:\t{online}")
    for file in ("tasks", "cgroup.procs") if version_1 else ("cgroup.procs", "cgroup.threads"):
        place = kernel.path(f"{group}/{file}")
        numbers = sorted({*map(int, place.read_text().split()), number})
        place.write_text("".join(f"{one}\n" for one in numbers))


def members(round_: Round, group: str) -> list[int]:
    return [int(word) for word in round_.text(f"{group}/cgroup.procs").split()]


# Every machine.


@pytest.mark.parametrize("kind", KINDS)
def test_cores_are_set_apart_and_given_back(kind: str, tmp_path: Path) -> None:
    round_ = round_on(kind, tmp_path)
    core = last_core(round_)
    round_.tune(cores=(core,))
    assert [change.state for change in round_.changes] == ["written"]
    assert round_.left()
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert round_.left() == {}


@pytest.mark.parametrize("kind", ["cgroup-v1", "amd-epp"])
def test_without_cores_nothing_is_set_apart(kind: str, tmp_path: Path) -> None:
    round_ = round_on(kind, tmp_path)
    assert round_.survey() == []
    assert "no cores are set apart" in round_.state("isolation").unavailable


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    round_ = round_on("arm-bare", tmp_path)
    round_.kernel.put("proc/mounts", "sysfs /sys sysfs rw 0 0")
    round_.survey(cores=(3,))
    assert round_.state("isolation").unavailable == "no control groups are mounted here"


def test_control_groups_without_cpusets(tmp_path: Path) -> None:
    round_ = round_on("arm-bare", tmp_path)
    round_.kernel.put(f"{V2}/cgroup.controllers", "cpu io memory pids")
    round_.survey(cores=(3,))
    assert "no controller `cpuset`" in round_.state("isolation").unavailable


@pytest.mark.parametrize(("kind", "top"), [("cgroup-v1", V1), ("amd-epp", V2)])
def test_a_rest_of_another_tune_is_not_touched(kind: str, top: str, tmp_path: Path) -> None:
    round_ = round_on(kind, tmp_path)
    round_.kernel.make_folder(f"{top}/torchyard")
    round_.survey(cores=(3,))
    assert "is there already" in round_.state("isolation").unavailable


@pytest.mark.parametrize(
    ("kind", "after"),
    [("cgroup-v1", after) for after in range(12)] + [("amd-epp", after) for after in range(3)],
)
def test_a_tune_that_dies_anywhere_comes_back(kind: str, after: int, tmp_path: Path) -> None:
    round_ = round_on(kind, tmp_path)
    round_.kernel.dies_after = after
    with pytest.raises(KeyboardInterrupt):
        round_.tune(cores=(3,))
    round_.kernel.dies_after = None
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert round_.left() == {}


@pytest.mark.parametrize("kind", ["cgroup-v1", "amd-epp"])
def test_restoring_what_never_was_is_nothing(kind: str, tmp_path: Path) -> None:
    round_ = round_on(kind, tmp_path)
    for setting in round_.survey(cores=(3,)) * 2:
        KNOBS["isolation"].restore(round_.machine, setting)
    assert round_.left() == {}


# Version 2.


def test_a_partition_takes_its_cores_from_everybody(tmp_path: Path) -> None:
    round_ = round_on("amd-epp", tmp_path)
    round_.tune(cores=(2, 3))
    assert round_.text(f"{V2}/torchyard/cpuset.cpus.partition") == "root"
    assert round_.text(f"{V2}/torchyard/measure/cpuset.cpus.effective") == "2-3"
    assert round_.text(f"{V2}/{SESSION}/cpuset.cpus.effective") == "0-1,4-7"
    assert round_.text(f"{V2}/cpuset.cpus.isolated") == ""


def test_an_isolated_partition_by_choice(tmp_path: Path) -> None:
    round_ = round_on("amd-epp", tmp_path)
    round_.tune(cores=(2, 3), partition="isolated")
    assert round_.text(f"{V2}/cpuset.cpus.isolated") == "2-3"
    assert round_.changes[0].setting.wanted == "isolated 2-3"
    assert any("pin every thread" in note for note in round_.state("isolation").notes)
    round_.restore()
    assert round_.left() == {}


def test_an_invalid_partition_is_taken_down_and_said(tmp_path: Path) -> None:
    round_ = round_on("amd-epp", tmp_path)
    other = f"{V2}/other"
    round_.kernel.make_folder(other)
    round_.kernel.write(f"{other}/cpuset.cpus", "3")
    round_.kernel.write(f"{other}/cpuset.cpus.partition", "root")
    round_.found = round_.kernel.snapshot()
    round_.tune(cores=(2, 3))
    assert [change.state for change in round_.changes] == ["refused"]
    assert "not exclusive" in round_.changes[0].reason
    assert round_.left() == {}, "nothing of ours is left while others are measured"


def switch_off(kernel: FakeKernel) -> None:
    """As most machines are: nobody needs cpusets."""
    for path in kernel.paths(f"{V2}/**/cgroup.subtree_control"):
        if kernel.text(path):
            kernel.put(path, "cpu io memory pids")
    for path in kernel.paths(f"{V2}/*/**/cpuset.*"):
        kernel.path(path).unlink()


def test_the_controller_is_switched_on_for_us_and_off_again(tmp_path: Path) -> None:
    round_ = round_on("arm-bare", tmp_path)
    kernel = round_.kernel
    switch_off(kernel)
    round_.found = kernel.snapshot()
    controllers, group = round_.survey(cores=(3,))
    assert controllers.wanted == "cpu io memory pids cpuset"
    assert group.place == f"{V2}/torchyard"
    round_.tune(cores=(3,))
    assert [change.state for change in round_.changes] == ["written", "written"]
    assert round_.text(f"{V2}/torchyard/cpuset.cpus.partition") == "root"
    with pytest.raises(NotAllowed, match="busy"):
        kernel.write(f"{V2}/cgroup.subtree_control", "-cpuset")  # as systemd might
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert round_.left() == {}


def test_a_controller_that_others_need_by_then_stays(tmp_path: Path) -> None:
    round_ = round_on("arm-bare", tmp_path)
    switch_off(round_.kernel)
    round_.tune(cores=(3,))
    round_.kernel.write(f"{V2}/system.slice/cgroup.subtree_control", "+cpuset")
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert "cpuset" in round_.text(f"{V2}/cgroup.subtree_control").split()
    assert not round_.kernel.exists(f"{V2}/torchyard")


def test_in_a_container_it_is_unavailable(tmp_path: Path) -> None:
    round_ = round_on("amd-epp", tmp_path)
    round_.kernel.put(f"{V2}/cpuset.cpus.partition", "member")
    round_.survey(cores=(3,))
    assert "in a container" in round_.state("isolation").unavailable


def test_old_kernels_have_no_partitions(tmp_path: Path) -> None:
    round_ = round_on("arm-bare", tmp_path)
    for path in round_.kernel.paths(f"{V2}/**/cpuset.cpus.partition"):
        round_.kernel.path(path).unlink()
    round_.survey(cores=(3,))
    assert "no partitions" in round_.state("isolation").unavailable


def test_a_process_joins_and_goes_back_to_its_session(tmp_path: Path) -> None:
    round_ = round_on("amd-epp", tmp_path)
    add_task(round_, 2100, f"{V2}/{SESSION}")
    round_.found = round_.kernel.snapshot()
    round_.tune(cores=(2, 3))
    join(round_.machine, 2100)
    join(round_.machine, 2100)
    assert members(round_, f"{V2}/torchyard/measure/{SESSION}") == [2100]
    assert members(round_, f"{V2}/{SESSION}") == [2000]
    round_.restore()
    assert round_.left() == {}


def test_who_has_no_group_any_more_goes_to_the_next_one_above(tmp_path: Path) -> None:
    """Groups with groups in them take no members, except the topmost."""
    round_ = round_on("amd-epp", tmp_path)
    round_.kernel.make_folder(f"{V2}/system.slice/run-1.scope")
    add_task(round_, 2100, f"{V2}/system.slice/run-1.scope")
    round_.tune(cores=(2, 3))
    join(round_.machine, 2100)
    round_.kernel.remove_folder(
        f"{V2}/system.slice/run-1.scope"
    )  # as systemd does when it is empty
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert members(round_, V2) == [2, 2100]


# Version 1.


def test_everybody_moves_to_the_house_and_back(tmp_path: Path) -> None:
    round_ = round_on("cgroup-v1", tmp_path)
    add_task(round_, 15, V1, bound=True)
    add_task(round_, 901, f"{V1}/docker")
    round_.found = round_.kernel.snapshot()
    round_.tune(cores=(2, 3))
    assert [change.state for change in round_.changes] == ["written"]
    house = f"{V1}/torchyard/house"
    assert members(round_, V1) == [15], "bound to its processor"
    assert members(round_, house) == [1, 2, 700]
    assert members(round_, f"{house}/docker") == [901]
    assert members(round_, f"{house}/docker/4f1c2a") == [2000]
    assert round_.text(f"{house}/cpuset.cpus") == "0-1,4-7"
    assert round_.text(f"{house}/docker/4f1c2a/cpuset.cpus") == "0-1", (
        "half of the machine, less ours"
    )
    assert round_.text(f"{V1}/torchyard/measure/cpuset.cpus") == "2-3"
    assert round_.state("isolation").notes == (
        "1 threads of the kernel are bound to processors and stay on the cores",
        "5 tasks are moved to the house; containers that are started later are not",
    )
    round_.restore()
    assert round_.left() == {}


def test_groups_that_are_elsewhere_anyway_are_left_alone(tmp_path: Path) -> None:
    round_ = round_on("cgroup-v1", tmp_path)
    round_.tune(cores=(6, 7))
    assert members(round_, f"{V1}/docker/4f1c2a") == [2000]
    assert not round_.kernel.exists(f"{V1}/torchyard/house/docker")
    round_.restore()
    assert round_.left() == {}


def test_a_group_whose_cores_are_all_taken_gets_the_house(tmp_path: Path) -> None:
    round_ = round_on("cgroup-v1", tmp_path)
    round_.tune(cores=(0, 1, 2, 3))
    assert round_.text(f"{V1}/torchyard/house/docker/4f1c2a/cpuset.cpus") == "4-7"
    round_.restore()
    assert round_.left() == {}


def test_tasks_that_died_and_new_ones_are_no_obstacle(tmp_path: Path) -> None:
    round_ = round_on("cgroup-v1", tmp_path)
    add_task(round_, 901, f"{V1}/docker")
    round_.tune(cores=(2, 3))
    house = f"{V1}/torchyard/house"
    # 901 dies; its parent and a shell have children, which the kernel puts where these are.
    for file in ("tasks", "cgroup.procs"):
        round_.kernel.path(f"{house}/docker/{file}").write_text("")
    add_task(round_, 5001, f"{house}/docker/4f1c2a")
    add_task(round_, 5002, house)
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert members(round_, f"{V1}/docker/4f1c2a") == [2000, 5001]
    assert members(round_, V1) == [1, 2, 700, 5002]
    assert members(round_, f"{V1}/docker") == []
    assert not round_.kernel.exists(f"{V1}/torchyard")


def test_a_task_that_ends_while_it_is_moved(tmp_path: Path) -> None:
    round_ = round_on("cgroup-v1", tmp_path)
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
    round_ = round_on("cgroup-v1", tmp_path)
    round_.tune(cores=(2, 3))
    round_.kernel.remove_folder(f"{V1}/docker/4f1c2a")
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert members(round_, f"{V1}/docker") == [2000]


def test_a_process_joins_out_of_the_house(tmp_path: Path) -> None:
    round_ = round_on("cgroup-v1", tmp_path)
    round_.tune(cores=(2, 3))
    join(round_.machine, 2000)
    group = f"{V1}/torchyard/measure/docker/4f1c2a"
    assert members(round_, group) == [2000]
    assert round_.text(f"{group}/cpuset.cpus") == "2-3"
    assert round_.text(f"{group}/cpuset.mems") == round_.text(f"{V1}/docker/4f1c2a/cpuset.mems")
    round_.restore()
    assert round_.left() == {}


def test_a_refused_shield_is_taken_down_at_once(tmp_path: Path) -> None:
    round_ = round_on("cgroup-v1", tmp_path)
    round_.kernel.refuse(f"{V1}/torchyard/house/cpuset.mems", errno.EACCES)
    round_.tune(cores=(2, 3))
    assert [change.state for change in round_.changes] == ["refused"]
    assert round_.left() == {}


def test_second_threads_that_went_offline_since_the_survey(tmp_path: Path) -> None:
    round_ = round_on("cgroup-v1", tmp_path)
    (setting,) = round_.survey(cores=(2, 3))
    round_.kernel.write("sys/devices/system/cpu/smt/control", "off")
    assert round_.text("sys/devices/system/cpu/online") == "0-3"
    round_.knobs["isolation"].write(round_.machine, setting)
    assert round_.text(f"{V1}/torchyard/house/cpuset.cpus") == "0-1"
    round_.knobs["isolation"].restore(round_.machine, setting)
    assert not round_.kernel.exists(f"{V1}/torchyard")


def test_cores_beyond_the_group_are_refused(tmp_path: Path) -> None:
    round_ = round_on("cgroup-v1", tmp_path)
    knob = Isolation(base="docker/4f1c2a")
    (setting,) = knob.survey(round_.machine, Wish(cores=(5,))).settings
    with pytest.raises(NotAllowed, match="cannot be set apart"):
        knob.write(round_.machine, setting)
    assert round_.left() == {}


# Some of the tasks only.


def test_only_tasks_below_the_base_are_moved(tmp_path: Path) -> None:
    round_ = round_on("cgroup-v1", tmp_path)
    knob = Isolation(base="docker")
    add_task(round_, 901, f"{V1}/docker")
    round_.found = round_.kernel.snapshot()
    (setting,) = knob.survey(round_.machine, Wish(cores=(2, 3))).settings
    knob.write(round_.machine, setting)
    assert members(round_, V1) == [1, 2, 700], "not below the base"
    assert members(round_, f"{V1}/docker/torchyard/house") == [901]
    assert members(round_, f"{V1}/docker/torchyard/house/4f1c2a") == [2000]
    join(round_.machine, 2000, base="docker")
    assert members(round_, f"{V1}/docker/torchyard/measure/4f1c2a") == [2000]
    with pytest.raises(NotAllowed, match="no group below"):
        join(round_.machine, 700, base="docker")
    knob.restore(round_.machine, setting)
    assert round_.left() == {}


# Joining.


@pytest.mark.parametrize("kind", ["cgroup-v1", "amd-epp"])
def test_nobody_can_join_what_is_not_there(kind: str, tmp_path: Path) -> None:
    round_ = round_on(kind, tmp_path)
    with pytest.raises(MissingTool, match="no cores are set apart"):
        join(round_.machine, 2000)
    round_.tune(cores=(2, 3) if kind != "arm-bare" else (3,))
    with pytest.raises(MissingTool, match="no process 4242"):
        join(round_.machine, 4242)


def test_a_copy_runs_no_commands(tmp_path: Path) -> None:
    round_ = round_on("amd-epp", tmp_path)
    assert "copy" in joining(round_.machine).unavailable


def test_joining_says_why_not() -> None:
    setting = joining(Machine(), base="no such group of ours")
    assert setting.unavailable
    assert setting.words == ()


def test_values_are_compared_by_what_counts() -> None:
    knob = KNOBS["isolation"]
    place = f"{V2}/cgroup.subtree_control"
    assert knob.same(place, "cpuset cpu", "cpu memory cpuset")
    assert not knob.same(place, "cpu", "cpu cpuset")
    assert not knob.same(f"{V2}/torchyard", "absent", "root 2-3")


def test_what_others_change_in_the_list_of_controllers_stays(tmp_path: Path) -> None:
    round_ = round_on("amd-epp", tmp_path)
    place = f"{V2}/cgroup.subtree_control"
    setting = Setting(knob="isolation", place=place, found="cpu", wanted="cpu cpuset")
    round_.kernel.put(place, "cpu memory")
    KNOBS["isolation"].restore(round_.machine, setting)
    assert round_.text(place) == "cpu memory"


def test_lists_of_cores_are_the_kernels(tmp_path: Path) -> None:
    round_ = round_on("amd-epp", tmp_path)
    (setting,) = round_.survey(cores=(7, 2, 3))
    assert setting.wanted == f"root {cpu_list((2, 3, 7))}"
