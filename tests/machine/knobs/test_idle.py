"""Idle states: the latency limit, single states, and the latency device on fake machines."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine.fake_kernel import NO_LATENCY_LIMIT, FakeKernel
from tests.machine.knob_cycle import KnobCycle
from tests.machine.trees import make_tree
from torchyard.errors import MissingTool
from torchyard.machine.knob import Machine, SkippedWrite
from torchyard.machine.knobs import cpu_power
from torchyard.machine.knobs.cpu_power import IdleLatencyKnob
from torchyard.machine.model import KnobState, QuietRequest, Setting
from torchyard.machine.system.cores import allowed_latency_us, idle_states
from torchyard.machine.system.file_tree import FileTree, HeldDevice, WriteRefused, read_device

CPU = "sys/devices/system/cpu"
DEVICE = "dev/cpu_dma_latency"
SETTING = Setting(knob="idle-latency", place=DEVICE, found="no limit", wanted="3")


@pytest.fixture
def knob() -> Iterator[IdleLatencyKnob]:
    """One that lets go of everything at the end."""
    knob = IdleLatencyKnob()
    yield knob
    for held in knob.held.values():
        held.close()


def _states(root: Path, **request: object) -> KnobState:
    machine = Machine(files=FakeKernel(root))
    return cpu_power.IDLE_STATES_KNOB.survey(machine, QuietRequest(**request))  # type: ignore[arg-type]


# Which limit.


@pytest.mark.parametrize(
    ("kind", "wish_us", "allowed_us"),
    [
        ("intel-pstate", 1, 2),  # C1 takes 2 us there
        ("intel-pstate", 0, 0),
        ("intel-pstate", 50, 50),
        ("amd-acpi", 1, 1),
        ("arm-cpufreq", 1, 1),
        ("cloud-vm", 1, 1),
    ],
)
def test_the_latency_limit_still_allows_shallow_idle_states(
    kind: str, wish_us: int, allowed_us: int, tmp_path: Path
) -> None:
    states = idle_states(FakeKernel(make_tree(kind, tmp_path)))
    assert allowed_latency_us(states, QuietRequest(latency_us=wish_us)) == allowed_us


def test_the_slowest_of_unequal_processors_decides(tmp_path: Path) -> None:
    root = make_tree("amd-acpi", tmp_path)
    (root / CPU / "cpu3/cpuidle/state1/latency").write_text("7\n")
    assert allowed_latency_us(idle_states(FakeKernel(root)), QuietRequest()) == 7


def test_states_without_a_latency_are_passed_over(tmp_path: Path) -> None:
    root = make_tree("amd-acpi", tmp_path)
    (root / CPU / "cpu0/cpuidle/state2/latency").write_text("?\n")
    (root / CPU / "cpu0/cpuidle/state1/latency").unlink()
    names = [state.name for state in idle_states(FakeKernel(root)) if "/cpu0/" in state.folder]
    assert names == ["POLL"]


# States one by one.


def test_states_deeper_than_the_limit_are_switched_off(tmp_path: Path) -> None:
    state = _states(make_tree("intel-pstate", tmp_path))
    assert {setting.place.split("/")[-2] for setting in state.settings} == {"state2", "state3"}
    assert len(state.settings) == 16
    assert state.notes == ("wake-up latency above 2 us: C1E, C6",)


def test_all_but_polling_go_where_polling_is_asked_for(tmp_path: Path) -> None:
    state = _states(make_tree("intel-pstate", tmp_path), latency_us=0)
    assert {setting.place.split("/")[-2] for setting in state.settings} == {
        "state1",
        "state2",
        "state3",
    }


def test_nothing_to_switch_off(tmp_path: Path) -> None:
    state = _states(make_tree("amd-acpi", tmp_path), latency_us=900)
    assert state.unavailable == "no idle state has a wake-up latency above 900 us"


def test_a_machine_without_an_idle_driver(tmp_path: Path) -> None:
    assert "no idle driver" in _states(make_tree("cloud-vm", tmp_path)).unavailable


def test_states_of_offline_processors_are_left_alone(tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("amd-acpi", tmp_path))
    place = f"{CPU}/cpu5/cpuidle/state2/disable"
    setting = Setting(knob="idle-states", place=place, found="0", wanted="1")
    kernel.write(f"{CPU}/cpu5/online", "0")
    with pytest.raises(SkippedWrite):
        cpu_power.IDLE_STATES_KNOB.write(Machine(files=kernel), setting)
    assert kernel.text(place) == "0"


def test_states_that_somebody_switched_off_stay_off(tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("amd-acpi", tmp_path / "root"))
    kernel.write(f"{CPU}/cpu2/cpuidle/state2/disable", "1")
    round_ = KnobCycle(kernel, tmp_path, {"idle-states": cpu_power.IDLE_STATES_KNOB})
    assert len(round_.tune()) == 7
    round_.restore()
    assert round_.left() == {}
    assert round_.text(f"{CPU}/cpu2/cpuidle/state2/disable") == "1"


# The device, on a fake machine.


def test_the_device_is_held_and_released(knob: IdleLatencyKnob, tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("intel-pstate", tmp_path))
    machine = Machine(files=kernel)
    before = kernel.snapshot()
    assert knob.read(machine, DEVICE) == "no limit"
    knob.write(machine, SETTING)
    assert knob.read(machine, DEVICE) == "3"
    assert (tmp_path / DEVICE).read_bytes() == (3).to_bytes(4, sys.byteorder)
    knob.restore(machine, SETTING)
    assert knob.held == {}
    assert knob.read(machine, DEVICE) == "no limit"
    assert kernel.snapshot() == before
    knob.restore(machine, SETTING)
    assert kernel.snapshot() == before


def test_a_second_write_takes_the_place_of_the_first(knob: IdleLatencyKnob, tmp_path: Path) -> None:
    machine = Machine(files=FakeKernel(make_tree("intel-pstate", tmp_path)))
    before = _descriptors()
    for state in ("3", "5", "5"):
        knob.write(
            machine, Setting(knob="idle-latency", place=DEVICE, found="no limit", wanted=state)
        )
    assert knob.read(machine, DEVICE) == "5"
    assert _descriptors() == before + 1
    knob.restore(machine, SETTING)
    assert _descriptors() == before


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_process_that_dies_holds_nothing(tmp_path: Path) -> None:
    """The fake kernel drops the value with the last descriptor, as the real one does."""
    kernel = FakeKernel(make_tree("intel-pstate", tmp_path))
    held = HeldDevice(kernel, DEVICE, (3).to_bytes(4, sys.byteorder))
    assert cpu_power.IDLE_LATENCY_KNOB.read(Machine(files=kernel), DEVICE) == "3"
    held.close()
    held.close()
    assert cpu_power.IDLE_LATENCY_KNOB.read(Machine(files=kernel), DEVICE) == "no limit"


def test_a_lower_limit_of_another_process_is_left_to_it(tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("intel-pstate", tmp_path))
    other = HeldDevice(kernel, DEVICE, bytes(4))
    try:
        state = cpu_power.IDLE_LATENCY_KNOB.survey(Machine(files=kernel), QuietRequest())
    finally:
        other.close()
    (setting,) = state.settings
    assert (setting.found, setting.wanted, setting.changes) == ("0", "0", False)
    assert "another process holds 0 us already" in " ".join(state.notes)


def test_a_higher_limit_of_another_process_is_lowered(
    knob: IdleLatencyKnob, tmp_path: Path
) -> None:
    kernel = FakeKernel(make_tree("intel-pstate", tmp_path))
    other = HeldDevice(kernel, DEVICE, (100).to_bytes(4, sys.byteorder))
    try:
        (setting,) = knob.survey(Machine(files=kernel), QuietRequest()).settings
        assert (setting.found, setting.wanted) == ("100", "2")
    finally:
        other.close()


def test_warnings_for_the_user(tmp_path: Path) -> None:
    def notes(kind: str, **request: object) -> str:
        machine = Machine(files=FakeKernel(make_tree(kind, tmp_path / f"{kind}{len(request)}")))
        survey = cpu_power.IDLE_LATENCY_KNOB.survey(machine, QuietRequest(**request))  # type: ignore[arg-type]
        return " ".join(survey.notes)

    assert "this kernel has no idle driver" in notes("cloud-vm")
    assert "the lightest idle state takes 2 us" in notes("intel-pstate")
    assert notes("intel-pstate", latency_us=0) == ""
    assert notes("amd-acpi") == ""


def test_a_machine_without_the_device(knob: IdleLatencyKnob, tmp_path: Path) -> None:
    root = make_tree("intel-pstate", tmp_path)
    (root / DEVICE).unlink()
    machine = Machine(files=FakeKernel(root))
    assert "no such device" in knob.survey(machine, QuietRequest()).unavailable
    with pytest.raises(MissingTool):
        knob.read(machine, DEVICE)
    with pytest.raises(WriteRefused) as refused:
        knob.write(machine, SETTING)
    assert refused.value.code == errno.ENOENT
    assert knob.held == {}
    knob.restore(machine, SETTING)


def test_without_read_permission_the_plan_is_shown(tmp_path: Path) -> None:
    """As a user sees it: the device belongs to root. A folder cannot be read by root either."""
    root = make_tree("intel-pstate", tmp_path)
    (root / DEVICE).unlink()
    (root / DEVICE).mkdir()
    state = cpu_power.IDLE_LATENCY_KNOB.survey(Machine(files=FileTree(root)), QuietRequest())
    (setting,) = state.settings
    assert (setting.found, setting.wanted) == ("unknown", "2")
    assert "cannot read the limit" in " ".join(state.notes)


def test_a_copied_machine_ignores_leftovers_of_a_killed_process(
    knob: IdleLatencyKnob, tmp_path: Path
) -> None:
    root = make_tree("intel-pstate", tmp_path)
    (root / DEVICE).write_bytes((3).to_bytes(4, sys.byteorder))
    machine = Machine(files=FileTree(root))
    assert knob.read(machine, DEVICE) == "3"
    knob.restore(machine, SETTING)
    assert knob.read(machine, DEVICE) == "no limit"


def test_reading_devices(tmp_path: Path) -> None:
    (tmp_path / "device").write_bytes(bytes(range(16)))
    files = FileTree(tmp_path)
    assert read_device(files, "device", size_bytes=4, offset=8).value == bytes((8, 9, 10, 11))
    assert read_device(files, "device", size_bytes=4, offset=99).value == b""
    missing = read_device(files, "none", size_bytes=4)
    assert missing.value is None
    assert missing.because == "/none: No such file or directory"
    assert bytes.fromhex("00943577") == NO_LATENCY_LIMIT
