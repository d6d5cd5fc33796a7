"""Tasks and control groups, pinned tasks, system programs, housekeeping cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine.fake_kernel import FakeKernel
from tests.machine.fake_programs import calls, put_programs, refuse_program
from tests.machine.trees import make_tree
from torchyard.errors import MissingTool, NotAllowed, StepFailed, UsageError
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS, RESTORE_ORDER, WRITE_ORDER, in_order
from torchyard.machine.model import QuietRequest, Setting
from torchyard.machine.system.cores import split_cores
from torchyard.machine.system.file_tree import FileTree, find_program, missing_programs, run_program
from torchyard.machine.system.tasks import (
    Cpusets,
    find_cpusets,
    folders_below,
    origin_of,
    read_allowed,
    read_task,
    tasks_of,
)

AFFINITIES = KNOBS["affinities"]


def put(root: Path, path: str, text: str) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


# Tasks.


def test_names_may_hold_anything(tmp_path: Path) -> None:
    put(
        tmp_path,
        "proc/42/stat",
        "42 (a) S (b) R 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 -5 1 0 8642 0 0\n",
    )
    task = read_task(FileTree(tmp_path), 42)
    assert task is not None
    assert (task.number, task.name, task.state, task.parent) == (42, "a) S (b", "R", 7)
    assert (task.start_ticks, task.nice, task.bound, task.of_kernel) == (8642, -5, False, False)


@pytest.mark.parametrize("text", ["", "42", "42 (x) S", "42 (x) S a b c d e f g"])
def test_what_is_no_task_is_none(text: str, tmp_path: Path) -> None:
    put(tmp_path, "proc/42/stat", text)
    assert read_task(FileTree(tmp_path), 42) is None
    assert read_task(FileTree(tmp_path), 43) is None


def test_this_process() -> None:
    files = FileTree()
    task = read_task(files, "self")
    assert task is not None
    assert task.number == os.getpid()
    assert task.parent == os.getppid()
    assert task.nice == os.getpriority(os.PRIO_PROCESS, 0)
    assert not task.of_kernel
    assert os.getpid() in tasks_of(files, "*")
    assert os.getpid() in tasks_of(files, str(os.getpid()))
    assert read_allowed(files, 2**22 + 1) is None


def test_threads_of_the_kernel_are_known() -> None:
    task = read_task(FileTree(), 2)
    if task is None or task.name != "kthreadd":
        pytest.skip("threads of the kernel are not shown here")
    assert task.of_kernel


# Groups.


@pytest.mark.parametrize("kind", ["cgroup-v1", "cgroup-v2", "smt-off-at-boot"])
def test_where_the_groups_are(kind: str, tmp_path: Path) -> None:
    files = FileTree(make_tree(kind, tmp_path))
    cpusets = find_cpusets(files)
    assert cpusets.version == (1 if kind == "cgroup-v1" else 2)
    top = "sys/fs/cgroup/cpuset" if kind == "cgroup-v1" else "sys/fs/cgroup"
    assert cpusets.top == top
    assert cpusets.group_of(files, 2) == top
    own = cpusets.group_of(files, "self")
    assert own is not None
    assert files.exists(f"{own}/{cpusets.members}")
    assert cpusets.group_of(files, 99999) is None


def test_version_1_beside_version_2_has_the_cpusets(tmp_path: Path) -> None:
    put(
        tmp_path,
        "proc/mounts",
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
        "cgroup /sys/fs/cgroup/cpu\\040set cgroup rw,relatime,cpuset,cpu 0 0\n",
    )
    cpusets = find_cpusets(FileTree(tmp_path))
    assert cpusets == Cpusets(version=1, top="sys/fs/cgroup/cpu set")


def test_a_group_that_is_only_shown_from_outside(tmp_path: Path) -> None:
    files = FileTree(make_tree("arm-bare", tmp_path))
    put(tmp_path, "proc/2000/cgroup", "0::/../../kubepods/pod1\n")
    assert find_cpusets(files).group_of(files, 2000) == "sys/fs/cgroup"


def test_no_mounts_no_groups(tmp_path: Path) -> None:
    with pytest.raises(MissingTool, match="mounts"):
        find_cpusets(FileTree(tmp_path))


def test_inner_folders_come_first(tmp_path: Path) -> None:
    for name in ("a/b/c", "a/d", "e"):
        (tmp_path / name).mkdir(parents=True)
    put(tmp_path, "a/file", "")
    assert folders_below(FileTree(tmp_path), ".") == ["./a/b/c", "./a/b", "./a/d", "./a", "./e"]


@pytest.mark.parametrize(
    ("group", "origin"),
    [
        ("top/torchyard/house", "top"),
        ("top/torchyard/measure/a/b", "top/a/b"),
        ("top/torchyard/house/a", "top/a"),
        ("top/a/b", "top/a/b"),
        ("top/torchyard/measurements", "top/torchyard/measurements"),
    ],
)
def test_where_tasks_belong(group: str, origin: str) -> None:
    assert origin_of("top/torchyard", group) == origin


def test_who_cannot_be_moved_is_returned(tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("cgroup-v1", tmp_path))
    cpusets = find_cpusets(kernel)
    text = kernel.text("proc/2/stat")
    kernel.put("proc/2/stat", text.replace(" 4194304 ", f" {0x04200040} "))
    kernel.make_folder(f"{cpusets.top}/goal")
    for file in ("cpuset.cpus", "cpuset.mems"):
        kernel.write(f"{cpusets.top}/goal/{file}", "0")
    assert cpusets.move(kernel, cpusets.top, f"{cpusets.top}/goal") == [2]
    assert cpusets.numbers(kernel, f"{cpusets.top}/goal") == [1, 700]
    with pytest.raises(NotAllowed, match="busy"):
        cpusets.remove(kernel, f"{cpusets.top}/goal")
    cpusets.remove(kernel, f"{cpusets.top}/that is not there")


# Pinned tasks.


@pytest.mark.parametrize("kind", ["cgroup-v1", "cgroup-v2", "smt-off-at-boot"])
def test_no_task_is_pinned_on_fresh_machines(kind: str, tmp_path: Path) -> None:
    machine = Machine(files=FileTree(make_tree(kind, tmp_path)))
    settings = AFFINITIES.survey(machine, QuietRequest()).settings
    # The one in the container may use what its group has, and is not pinned by that.
    assert {setting.place for setting in settings} <= {"proc/2000 started 1200"}
    for setting in settings:
        AFFINITIES.restore(machine, setting)


def _pin(files: FileTree, number: int, cpus: str, flags: int = 0x400000) -> None:
    status = files.path(f"proc/{number}/status")
    old = next(
        line for line in status.read_text().splitlines() if line.startswith("Cpus_allowed_l")
    )
    status.write_text(status.read_text().replace(old, f"Cpus_allowed_list:\t{cpus}"))
    stat = files.path(f"proc/{number}/stat")
    stat.write_text(stat.read_text().replace(" 4194304 ", f" {flags} "))


def test_pinned_tasks_are_kept_and_bound_threads_are_not(tmp_path: Path) -> None:
    machine = Machine(files=FileTree(make_tree("amd-epp", tmp_path)))
    _pin(machine.files, 700, "5")
    _pin(machine.files, 2, "3", flags=0x04200040)
    assert AFFINITIES.survey(machine, QuietRequest()).settings == (
        Setting(knob="affinities", place="proc/700 started 1200", found="5", wanted=None),
    )


def test_tasks_of_a_copy_are_not_pinned(tmp_path: Path) -> None:
    machine = Machine(files=FileTree(make_tree("amd-epp", tmp_path)))
    setting = Setting(knob="affinities", place="proc/700 started 1200", found="5", wanted=None)
    with pytest.raises(NotAllowed, match="copy"):
        AFFINITIES.restore(machine, setting)
    AFFINITIES.write(machine, setting)
    # Another task with the same number, and no task at all.
    for place in ("proc/700 started 99", "proc/701 started 1"):
        gone = Setting(knob="affinities", place=place, found="5", wanted=None)
        assert AFFINITIES.read(machine, place) == "gone"
        AFFINITIES.restore(machine, gone)
    with pytest.raises(UsageError, match="is not a task"):
        AFFINITIES.read(machine, "proc/../etc")


def test_processors_are_compared_as_sets() -> None:
    assert AFFINITIES.same("", "0,1,2", "0-2")
    assert AFFINITIES.same("", "gone", "0-2")
    assert not AFFINITIES.same("", "0", "0-2")


# Programs.


def test_programs_of_a_copy_are_its_own(tmp_path: Path) -> None:
    files = FileTree(tmp_path)
    assert find_program(files, "sh") is None
    assert missing_programs(files, "sh") == "sh is not in this copy of a machine"
    with pytest.raises(MissingTool, match="copy"):
        run_program(files, "sh", limit_s=5)
    put_programs(tmp_path)
    put(tmp_path, "proc/swaps", "Filename\n/dev/sda2 partition 1 0 -2\n")
    run_program(files, "swapoff", "/dev/sda2", limit_s=20)
    assert calls(tmp_path) == ["swapoff /dev/sda2"]
    refuse_program(tmp_path, "swapoff", "no")
    with pytest.raises(
        StepFailed, match="`swapoff '/dev/a b'` failed with exit code 1: swapoff: no"
    ):
        run_program(files, "swapoff", "/dev/a b", limit_s=20)


def test_programs_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    files = FileTree()
    assert find_program(files, "sh")
    assert missing_programs(files, "sh", "torchyard-no-such-program", "and-no-other") == (
        "torchyard-no-such-program and and-no-other are not installed"
    )
    assert run_program(files, "sh", "-c", "echo hello", limit_s=20) == "hello\n"
    with pytest.raises(StepFailed, match=r"timed out after 0\.2 s"):
        run_program(files, "sleep", "20", limit_s=0.2)


@pytest.mark.parametrize("path", ["", ".", ":", "bin:."])
def test_nothing_is_run_from_where_the_user_is(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path, tmp_path / "bin"):
        folder.mkdir(exist_ok=True)
        (folder / "swapoff-of-a-stranger").write_text("#!/bin/sh\n")
        (folder / "swapoff-of-a-stranger").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", path)
    assert find_program(FileTree(), "swapoff-of-a-stranger") is None


# Cores.


@pytest.mark.parametrize(
    ("cores", "because"),
    [((), "--cores"), ((0, 1, 2, 3), "none for housekeeping"), ((3, 9), "CPUs 9 are not online")],
)
def test_cores_that_cannot_be_divided(cores: tuple[int, ...], because: str, tmp_path: Path) -> None:
    parts = split_cores(FileTree(make_tree("arm-bare", tmp_path)), QuietRequest(cores=cores))
    assert because in parts.because
    assert parts.measuring == parts.housekeeping == ()


def test_the_remaining_cores_are_housekeeping_cores(tmp_path: Path) -> None:
    parts = split_cores(
        FileTree(make_tree("smt-off-at-boot", tmp_path)), QuietRequest(cores=(3, 1, 3))
    )
    assert (parts.measuring, parts.housekeeping, parts.because) == ((1, 3), (0, 2), "")


# Order.


def test_orders_of_these_knobs() -> None:
    names = ["isolation", "workqueues", "interrupts", "irqbalance", "smt", "affinities"]
    written = in_order(names, WRITE_ORDER)
    assert written.index("smt") < written.index("isolation")
    assert written.index("irqbalance") < written.index("interrupts")
    assert written.index("workqueues") < written.index("isolation")
    back = in_order(names, RESTORE_ORDER)
    assert back.index("isolation") < back.index("smt") < back.index("affinities")
    assert back.index("isolation") < back.index("workqueues")
    assert back.index("interrupts") < back.index("irqbalance")


def test_every_name_of_the_orders_is_a_knob() -> None:
    for first, then, reason in (*WRITE_ORDER, *RESTORE_ORDER):
        assert first in KNOBS
        assert then in KNOBS
        assert reason


def test_the_package_needs_no_torch() -> None:
    program = "import sys, torchyard.machine.knobs; print(sorted({'torch', 'numpy', 'click', 'rich'} & set(sys.modules)))"
    completed = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert completed.stdout == "[]\n"
