"""irqbalance is stopped and started again: by its service, or by signals."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.machine.fake_kernel import FakeKernel
from tests.machine.fake_programs import calls, put_programs, refuse_program
from tests.machine.knob_cycle import KnobCycle
from tests.machine.trees import make_tree
from torchyard.errors import NotAllowed, UsageError
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.model import QuietRequest, Setting
from torchyard.machine.system.tasks import read_task

KNOB = KNOBS["irqbalance"]
UNIT = "irqbalance.service"


def cycle_on(kind: str, folder: Path) -> KnobCycle:
    root = make_tree(kind, folder / "root")
    put_programs(root)
    return KnobCycle(FakeKernel(root), folder, {"irqbalance": KNOB})


# As a service.


@pytest.mark.parametrize("kind", ["intel-pstate", "cgroup-v1"])
def test_the_service_stops_and_starts(kind: str, tmp_path: Path) -> None:
    round_ = cycle_on(kind, tmp_path)
    round_.tune()
    assert [change.state for change in round_.changes] == ["written"]
    assert round_.changes[0].setting == Setting(
        knob="irqbalance", place=UNIT, found="running", wanted="stopped"
    )
    assert not round_.kernel.exists("proc/700")
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert calls(round_.kernel.root) == [f"systemctl stop {UNIT}", f"systemctl start {UNIT}"]
    assert round_.left() == {}


def test_a_second_restore_starts_nothing(tmp_path: Path) -> None:
    round_ = cycle_on("amd-acpi", tmp_path)
    round_.tune()
    setting = round_.changes[0].setting
    KNOB.restore(round_.machine, setting)
    KNOB.restore(round_.machine, setting)
    assert calls(round_.kernel.root).count(f"systemctl start {UNIT}") == 1


def test_a_refused_stop_leaves_it_running(tmp_path: Path) -> None:
    round_ = cycle_on("amd-acpi", tmp_path)
    refuse_program(round_.kernel.root, "systemctl", "Failed to stop: access denied")
    round_.tune()
    assert round_.changes[0].state == "refused"
    assert "access denied" in round_.changes[0].reason
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert round_.left() == {}


def test_a_service_that_does_not_start_again_is_reported(tmp_path: Path) -> None:
    round_ = cycle_on("amd-acpi", tmp_path)
    round_.tune()
    refuse_program(round_.kernel.root, "systemctl", "unit is masked")
    restored = round_.restore()
    assert restored is not None
    assert [item.reason for item in restored.missing] == [
        f"`systemctl start {UNIT}` failed with exit code 1: systemctl: unit is masked"
    ]


def test_names_of_services_are_checked(tmp_path: Path) -> None:
    round_ = cycle_on("amd-acpi", tmp_path)
    setting = Setting(knob="irqbalance", place="--now evil", found="stopped", wanted="running")
    with pytest.raises(UsageError, match="not a service name"):
        KNOB.write(round_.machine, setting)
    assert calls(round_.kernel.root) == []


# Where there is nothing to do.


def test_not_installed_and_not_running(tmp_path: Path) -> None:
    round_ = cycle_on("arm-bare", tmp_path)
    shutil.rmtree(round_.kernel.path("proc/700"))
    assert round_.survey() == []
    assert round_.state("irqbalance").unavailable == (
        "irqbalance is not running and is not installed"
    )
    program = round_.kernel.path("usr/sbin/irqbalance")
    program.parent.mkdir(parents=True)
    program.write_text("")
    round_.survey()
    assert round_.state("irqbalance").unavailable == "irqbalance is not running"


def test_without_systemctl(tmp_path: Path) -> None:
    round_ = cycle_on("arm-bare", tmp_path)
    round_.kernel.path(".kernel/programs/systemctl").unlink()
    assert round_.survey() == []
    assert "systemctl is not in this copy" in round_.state("irqbalance").unavailable


def test_processes_of_a_copy_are_never_signalled(tmp_path: Path) -> None:
    round_ = cycle_on("arm-bare", tmp_path)
    round_.kernel.put("proc/1/comm", "sh")  # no systemd: only signals would be left
    assert round_.survey() == []
    assert "copy of a machine" in round_.state("irqbalance").unavailable
    place = "process 700 started 1200"
    with pytest.raises(NotAllowed, match="copy"):
        KNOB.write(
            round_.machine, Setting(knob="irqbalance", place=place, found="", wanted="stopped")
        )


# A real process of that name, on this machine.


@contextmanager
def own_irqbalance(folder: Path) -> Iterator[int]:
    if any(_comm(pid) == "irqbalance" for pid in _pids()):
        pytest.skip("a real irqbalance runs on this machine")
    if _comm(1) == "systemd":
        pytest.skip("systemd would be asked for the service of the process")
    program = folder / "irqbalance"
    shutil.copy("/bin/sleep", program)
    process = subprocess.Popen([program, "60"])
    try:
        deadline = time.monotonic() + 60
        while _comm(process.pid) != "irqbalance":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _state(pid: int) -> str:
    task = read_task(Machine().files, pid)
    return "" if task is None else task.state


def test_a_process_is_suspended_and_resumed(tmp_path: Path) -> None:
    machine = Machine()
    with own_irqbalance(tmp_path) as pid:
        (setting,) = KNOB.survey(machine, QuietRequest()).settings
        assert (setting.found, setting.wanted) == ("running", "stopped")
        KNOB.write(machine, setting)
        assert _state(pid) == "T"
        assert KNOB.read(machine, setting.place) == "stopped"
        KNOB.restore(machine, setting)
        KNOB.restore(machine, setting)
        assert _state(pid) in ("S", "R")
        assert KNOB.read(machine, setting.place) == "running"


def test_a_process_that_ended_needs_nothing(tmp_path: Path) -> None:
    machine = Machine()
    with own_irqbalance(tmp_path) as pid:
        (setting,) = KNOB.survey(machine, QuietRequest()).settings
        KNOB.write(machine, setting)
        os.kill(pid, signal.SIGKILL)
        while _state(pid) not in ("Z", ""):
            time.sleep(0.01)
        KNOB.restore(machine, setting)
        assert KNOB.read(machine, setting.place) == "gone"
        assert KNOB.same(setting.place, "gone", setting.found)


def test_one_that_was_suspended_before_stays_suspended(tmp_path: Path) -> None:
    machine = Machine()
    with own_irqbalance(tmp_path) as pid:
        os.kill(pid, signal.SIGSTOP)
        while _state(pid) != "T":
            time.sleep(0.01)
        (setting,) = KNOB.survey(machine, QuietRequest()).settings
        assert setting.found == "stopped"
        assert KNOB.same(setting.place, setting.found, setting.wanted or "")
        KNOB.restore(machine, setting)
        assert _state(pid) == "T"


def test_another_process_with_the_same_number_is_left_alone(tmp_path: Path) -> None:
    machine = Machine()
    with own_irqbalance(tmp_path) as pid:
        place = f"process {pid} started 1"
        setting = Setting(knob="irqbalance", place=place, found="running", wanted="stopped")
        KNOB.write(machine, setting)
        assert _state(pid) in ("S", "R")
