"""Core isolation with fake control groups of version 2, removed without a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machine.cgroup_machines import SESSION, V1, V2, add_task, cycle_on, last_core, members
from tests.machine.fake_kernel import FakeKernel
from torchyard.core.cpu_lists import cpu_list
from torchyard.errors import MissingTool, NotAllowed
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.knobs.cores import join, join_setting
from torchyard.machine.model import Setting

# Every machine.


@pytest.mark.parametrize("kind", ["cgroup-v1", "cgroup-v2", "smt-off-at-boot"])
def test_cores_are_isolated_and_released(kind: str, tmp_path: Path) -> None:
    round_ = cycle_on(kind, tmp_path)
    core = last_core(round_)
    round_.tune(cores=(core,))
    assert [change.state for change in round_.changes] == ["written"]
    assert round_.left()
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert round_.left() == {}


@pytest.mark.parametrize("kind", ["cgroup-v1", "amd-epp"])
def test_without_cores_nothing_is_isolated(kind: str, tmp_path: Path) -> None:
    round_ = cycle_on(kind, tmp_path)
    assert round_.survey() == []
    assert "no cores are isolated" in round_.state("isolation").unavailable


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    round_ = cycle_on("arm-bare", tmp_path)
    round_.kernel.put("proc/mounts", "sysfs /sys sysfs rw 0 0")
    round_.survey(cores=(3,))
    assert round_.state("isolation").unavailable == "no control groups are mounted here"


def test_control_groups_without_cpusets(tmp_path: Path) -> None:
    round_ = cycle_on("arm-bare", tmp_path)
    round_.kernel.put(f"{V2}/cgroup.controllers", "cpu io memory pids")
    round_.survey(cores=(3,))
    assert "no cpuset controller" in round_.state("isolation").unavailable


@pytest.mark.parametrize(("kind", "top"), [("cgroup-v1", V1), ("amd-epp", V2)])
def test_the_remains_of_another_quieting_are_not_touched(
    kind: str, top: str, tmp_path: Path
) -> None:
    round_ = cycle_on(kind, tmp_path)
    round_.kernel.make_folder(f"{top}/torchyard")
    round_.survey(cores=(3,))
    assert "already exists" in round_.state("isolation").unavailable


@pytest.mark.parametrize(
    ("kind", "after"),
    [("cgroup-v1", after) for after in range(12)] + [("amd-epp", after) for after in range(3)],
)
def test_quieting_that_dies_anywhere_is_restored(kind: str, after: int, tmp_path: Path) -> None:
    round_ = cycle_on(kind, tmp_path)
    round_.kernel.dies_after = after
    with pytest.raises(KeyboardInterrupt):
        round_.tune(cores=(3,))
    round_.kernel.dies_after = None
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert round_.left() == {}


@pytest.mark.parametrize("kind", ["cgroup-v1", "amd-epp"])
def test_restoring_without_isolation_does_nothing(kind: str, tmp_path: Path) -> None:
    round_ = cycle_on(kind, tmp_path)
    for setting in round_.survey(cores=(3,)) * 2:
        KNOBS["isolation"].restore(round_.machine, setting)
    assert round_.left() == {}


# Version 2.


def test_a_partition_takes_its_cores_from_all_groups(tmp_path: Path) -> None:
    round_ = cycle_on("amd-epp", tmp_path)
    round_.tune(cores=(2, 3))
    assert round_.text(f"{V2}/torchyard/cpuset.cpus.partition") == "root"
    assert round_.text(f"{V2}/torchyard/measure/cpuset.cpus.effective") == "2-3"
    assert round_.text(f"{V2}/{SESSION}/cpuset.cpus.effective") == "0-1,4-7"
    assert round_.text(f"{V2}/cpuset.cpus.isolated") == ""


def test_an_isolated_partition_by_choice(tmp_path: Path) -> None:
    round_ = cycle_on("amd-epp", tmp_path)
    round_.tune(cores=(2, 3), partition="isolated")
    assert round_.text(f"{V2}/cpuset.cpus.isolated") == "2-3"
    assert round_.changes[0].setting.wanted == "isolated 2-3"
    assert any("pin every thread" in note for note in round_.state("isolation").notes)
    round_.restore()
    assert round_.left() == {}


def test_an_invalid_partition_is_removed_and_reported(tmp_path: Path) -> None:
    round_ = cycle_on("amd-epp", tmp_path)
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
    round_ = cycle_on("arm-bare", tmp_path)
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
    round_ = cycle_on("arm-bare", tmp_path)
    switch_off(round_.kernel)
    round_.tune(cores=(3,))
    round_.kernel.write(f"{V2}/system.slice/cgroup.subtree_control", "+cpuset")
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert "cpuset" in round_.text(f"{V2}/cgroup.subtree_control").split()
    assert not round_.kernel.exists(f"{V2}/torchyard")


def test_in_a_container_it_is_unavailable(tmp_path: Path) -> None:
    round_ = cycle_on("amd-epp", tmp_path)
    round_.kernel.put(f"{V2}/cpuset.cpus.partition", "member")
    round_.survey(cores=(3,))
    assert "in a container" in round_.state("isolation").unavailable


def test_old_kernels_have_no_partitions(tmp_path: Path) -> None:
    round_ = cycle_on("arm-bare", tmp_path)
    for path in round_.kernel.paths(f"{V2}/**/cpuset.cpus.partition"):
        round_.kernel.path(path).unlink()
    round_.survey(cores=(3,))
    assert "no cpuset partitions" in round_.state("isolation").unavailable


def test_a_process_joins_and_goes_back_to_its_session(tmp_path: Path) -> None:
    round_ = cycle_on("amd-epp", tmp_path)
    add_task(round_, 2100, f"{V2}/{SESSION}")
    round_.found = round_.kernel.snapshot()
    round_.tune(cores=(2, 3))
    join(round_.machine, 2100)
    join(round_.machine, 2100)
    assert members(round_, f"{V2}/torchyard/measure/{SESSION}") == [2100]
    assert members(round_, f"{V2}/{SESSION}") == [2000]
    round_.restore()
    assert round_.left() == {}


def test_a_task_whose_group_is_gone_moves_to_the_parent_group(tmp_path: Path) -> None:
    """Groups with groups in them take no members, except the topmost."""
    round_ = cycle_on("amd-epp", tmp_path)
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


# Joining.


@pytest.mark.parametrize("kind", ["cgroup-v1", "amd-epp"])
def test_joining_a_missing_group_fails(kind: str, tmp_path: Path) -> None:
    round_ = cycle_on(kind, tmp_path)
    with pytest.raises(MissingTool, match="no cores are isolated"):
        join(round_.machine, 2000)
    round_.tune(cores=(2, 3) if kind != "arm-bare" else (3,))
    with pytest.raises(MissingTool, match="no process 4242"):
        join(round_.machine, 4242)


def test_a_copy_runs_no_commands(tmp_path: Path) -> None:
    round_ = cycle_on("amd-epp", tmp_path)
    assert "copy" in join_setting(round_.machine).unavailable


def test_joining_says_why_not() -> None:
    setting = join_setting(Machine(), base="no such group of ours")
    assert setting.unavailable
    assert setting.words == ()


def test_values_are_compared_by_what_counts() -> None:
    knob = KNOBS["isolation"]
    place = f"{V2}/cgroup.subtree_control"
    assert knob.same(place, "cpuset cpu", "cpu memory cpuset")
    assert not knob.same(place, "cpu", "cpu cpuset")
    assert not knob.same(f"{V2}/torchyard", "absent", "root 2-3")


def test_what_others_change_in_the_list_of_controllers_stays(tmp_path: Path) -> None:
    round_ = cycle_on("amd-epp", tmp_path)
    place = f"{V2}/cgroup.subtree_control"
    setting = Setting(knob="isolation", place=place, found="cpu", wanted="cpu cpuset")
    round_.kernel.put(place, "cpu memory")
    KNOBS["isolation"].restore(round_.machine, setting)
    assert round_.text(place) == "cpu memory"


def test_lists_of_cores_are_the_kernels(tmp_path: Path) -> None:
    round_ = cycle_on("amd-epp", tmp_path)
    (setting,) = round_.survey(cores=(7, 2, 3))
    assert setting.wanted == f"root {cpu_list((2, 3, 7))}"
