"""SMT: the switch, kernels without it, and state that the kernel drops with a processor."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from tests.machine.fake_kernel import FakeKernel
from tests.machine.knob_cycle import KnobCycle
from tests.machine.trees import make_tree
from torchyard.machine.knob import Machine
from torchyard.machine.knobs.cores import SMT_KNOB
from torchyard.machine.model import KnobState, QuietRequest, Setting

CPU = "sys/devices/system/cpu"
CONTROL = f"{CPU}/smt/control"
SETS = "sys/fs/cgroup/cpuset"


def _survey(root: Path, **request: object) -> KnobState:
    return SMT_KNOB.survey(Machine(files=FakeKernel(root)), QuietRequest(**request))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["intel-pstate", "amd-acpi", "amd-epp", "cgroup-v2"])
def test_second_threads_go_offline_and_online_again(kind: str, tmp_path: Path) -> None:
    round_ = KnobCycle.of(kind, tmp_path, "smt")
    (change,) = round_.tune()
    assert change.state == "written"
    assert round_.text(f"{CPU}/online") == "0-3"
    assert round_.text(f"{CPU}/smt/active") == "0"
    round_.restore()
    assert round_.text(f"{CPU}/online") == "0-7"
    assert round_.left() == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("notsupported", "this CPU has no SMT"),
        ("notimplemented", "this kernel cannot control SMT"),
    ],
)
def test_machines_that_cannot_switch(text: str, reason: str, tmp_path: Path) -> None:
    root = make_tree("amd-acpi", tmp_path)
    (root / CONTROL).write_text(text + "\n")
    state = _survey(root)
    assert reason in state.unavailable
    assert state.settings == ()


def test_a_kernel_that_does_not_know_its_threads(tmp_path: Path) -> None:
    """`-1` is what Arm kernels say that have the switch and cores of one thread."""
    root = make_tree("arm-bare", tmp_path)
    (root / CONTROL).write_text("-1\n")
    assert "no core has an SMT sibling online" in _survey(root).unavailable


@pytest.mark.parametrize("text", ["off", "forceoff"])
def test_what_is_off_already_is_not_written(text: str, tmp_path: Path) -> None:
    root = make_tree("smt-off-at-boot", tmp_path / "root")
    (root / CONTROL).write_text(text + "\n")
    round_ = KnobCycle(FakeKernel(root), tmp_path, {"smt": SMT_KNOB})
    assert round_.tune() == []
    assert round_.state("smt").unavailable == ""
    assert round_.kernel.accepted == []
    assert SMT_KNOB.same(CONTROL, "forceoff", "off")
    assert not SMT_KNOB.same(CONTROL, "on", "off")


def test_some_threads_of_many_are_restored_as_they_were(tmp_path: Path) -> None:
    """POWER has up to eight threads per core, and a number for how many are on."""
    root = make_tree("amd-acpi", tmp_path)
    (root / CONTROL).write_text("2\n")
    (setting,) = _survey(root).settings
    assert (setting.found, setting.wanted) == ("2", "off")


def test_kernels_without_the_switch_take_processors_offline_one_by_one(tmp_path: Path) -> None:
    root = make_tree("amd-acpi", tmp_path / "root")
    shutil.rmtree(root / CPU / "smt")
    round_ = KnobCycle(FakeKernel(root), tmp_path, {"smt": SMT_KNOB})
    changes = round_.tune()
    assert [change.setting.place for change in changes] == [
        f"{CPU}/cpu{cpu}/online" for cpu in (4, 5, 6, 7)
    ]
    assert round_.text(f"{CPU}/online") == "0-3"
    round_.restore()
    assert round_.left() == {}


def test_without_second_threads_and_without_a_switch(tmp_path: Path) -> None:
    root = make_tree("arm-bare", tmp_path)
    shutil.rmtree(root / CPU / "smt")
    assert _survey(root).unavailable == "no core has an SMT sibling online"


@pytest.mark.parametrize("cpu", [2, 6])
def test_a_processor_that_was_offline_is_offline_again(cpu: int, tmp_path: Path) -> None:
    """Switching SMT on brings up every processor."""
    kernel = FakeKernel(make_tree("amd-acpi", tmp_path / "root"))
    kernel.write(f"{CPU}/cpu{cpu}/online", "0")
    round_ = KnobCycle(kernel, tmp_path)
    round_.tune()
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert round_.text(f"{CPU}/cpu{cpu}/online") == "0"
    assert round_.left() == {}


def test_cpusets_of_version_1_are_restored(tmp_path: Path) -> None:
    """The kernel takes a processor out of them for good when it goes offline."""
    root = make_tree("cgroup-v1", tmp_path / "root")
    kernel = FakeKernel(root)
    kernel.write(f"{SETS}/docker/4f1c2a/cpuset.cpus", "1-2,5-6")
    round_ = KnobCycle(kernel, tmp_path, {"smt": SMT_KNOB})
    round_.tune()
    assert round_.text(f"{SETS}/docker/4f1c2a/cpuset.cpus") == "1-2"
    round_.restore()
    assert round_.text(f"{SETS}/docker/4f1c2a/cpuset.cpus") == "1-2,5-6"
    assert round_.left() == {}
    assert round_.kernel.refused == [], "a group is put back after the one it has to fit into"


def test_groups_that_ended_meanwhile_are_no_failure(tmp_path: Path) -> None:
    root = make_tree("cgroup-v1", tmp_path / "root")
    kernel = FakeKernel(root)
    kernel.write(f"{SETS}/docker/4f1c2a/cpuset.cpus", "1-2,5-6")
    round_ = KnobCycle(kernel, tmp_path, {"smt": SMT_KNOB})
    round_.tune()
    shutil.rmtree(root / SETS / "docker/4f1c2a")
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert round_.text(f"{SETS}/docker/cpuset.cpus") == "0-7"


def test_interrupts_that_had_nowhere_else_to_go_are_restored(tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("amd-acpi", tmp_path / "root"))
    kernel.write("proc/irq/24/smp_affinity", "60")
    kernel.write("proc/irq/25/smp_affinity", "21")
    round_ = KnobCycle(kernel, tmp_path, {"smt": SMT_KNOB})
    round_.tune()
    assert round_.text("proc/irq/24/smp_affinity") != "60"
    assert round_.text("proc/irq/25/smp_affinity") == "21", "one of its processors is still there"
    places = [setting.place for setting in round_.state("smt").settings]
    assert "proc/irq/24/smp_affinity" in places
    assert "proc/irq/25/smp_affinity" not in places
    round_.restore()
    assert round_.text("proc/irq/24/smp_affinity") == "60"
    assert round_.left() == {}


def test_a_refused_switch_leaves_everything_as_it_was(tmp_path: Path) -> None:
    round_ = KnobCycle.of("intel-pstate", tmp_path, "smt")
    round_.kernel.refuse(CONTROL, errno.EBUSY)
    (change,) = round_.tune()
    assert change.state == "refused"
    round_.restore()
    assert round_.left() == {}


def test_processors_that_stay_offline_are_reported(tmp_path: Path) -> None:
    round_ = KnobCycle.of("intel-pstate", tmp_path)
    round_.tune()
    round_.kernel.refuse(CONTROL, errno.EBUSY)
    restored = round_.restore()
    assert restored is not None
    missing = {item.setting.place for item in restored.missing}
    assert CONTROL in missing
    assert f"{CPU}/cpufreq/policy4/scaling_governor" in missing, "still offline, so not restored"
    round_.kernel.refusals.clear()
    again = round_.restore()
    assert again is not None
    assert again.complete
    assert round_.left() == {}


def test_warnings_for_the_user(tmp_path: Path) -> None:
    notes = " ".join(_survey(make_tree("intel-pstate", tmp_path), cores=(2, 6)).notes)
    assert "4 of 8 CPUs stay online" in notes
    assert "CPUs 6 are SMT siblings and go offline" in notes


def test_damaged_lists_are_passed_over(tmp_path: Path) -> None:
    root = make_tree("cgroup-v1", tmp_path)
    (root / SETS / "docker/cpuset.cpus").write_text("what?\n")
    (root / "proc/irq/24/smp_affinity").write_text("zz\n")
    assert [setting.place for setting in _survey(root).settings] == [CONTROL]


def test_values_of_what_is_gone_match_everything(tmp_path: Path) -> None:
    machine = Machine(files=FakeKernel(make_tree("cgroup-v1", tmp_path)))
    place = "proc/irq/99/smp_affinity"
    now = SMT_KNOB.read(machine, place)
    assert SMT_KNOB.same(place, now, "0f")
    SMT_KNOB.restore(machine, Setting(knob="smt", place=place, found="0f", wanted=None))
    assert not SMT_KNOB.same("proc/irq/24/smp_affinity", "0f", "ff")
