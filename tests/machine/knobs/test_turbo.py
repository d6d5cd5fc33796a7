"""Turbo and boost: four kinds of switches, and hardware preferences."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.machine.fake_kernel import FakeKernel
from tests.machine.knob_cycle import KnobCycle
from tests.machine.trees import make_tree
from torchyard.machine.knob import Knob, Machine, SkippedWrite
from torchyard.machine.knobs import cpu_power
from torchyard.machine.model import QuietRequest, Setting
from torchyard.machine.system.file_tree import WriteRefused

CPU = "sys/devices/system/cpu"
NO_TURBO = f"{CPU}/intel_pstate/no_turbo"
BOOST = f"{CPU}/cpufreq/boost"
POLICY = f"{CPU}/cpufreq/policy0"


def _state_of(knob: Knob, root: Path) -> dict[str, str | None]:
    state = knob.survey(Machine(files=FakeKernel(root)), QuietRequest())
    assert not state.unavailable
    return {setting.place: setting.wanted for setting in state.settings}


@pytest.mark.parametrize(
    ("kind", "place", "wanted"),
    [("intel-pstate", NO_TURBO, "1"), ("amd-acpi", BOOST, "0"), ("amd-epp", BOOST, "0")],
)
def test_the_switch_of_each_driver(kind: str, place: str, wanted: str, tmp_path: Path) -> None:
    round_ = KnobCycle.of(kind, tmp_path, "turbo")
    changes = round_.tune()
    assert [(change.setting.place, change.state) for change in changes] == [(place, "written")]
    assert round_.text(place) == wanted
    round_.restore()
    assert round_.left() == {}


def test_turbo_that_is_off_already_is_not_written(tmp_path: Path) -> None:
    root = make_tree("intel-pstate", tmp_path / "root")
    (root / NO_TURBO).write_text("1\n")
    round_ = KnobCycle(FakeKernel(root), tmp_path, {"turbo": cpu_power.TURBO_KNOB})
    # What a processor answers whose firmware has no turbo.
    round_.kernel.remember("turbo unavailable", value=True)
    assert round_.tune() == []
    assert round_.kernel.accepted == []


def test_firmware_that_has_turbo_locked_refuses(tmp_path: Path) -> None:
    round_ = KnobCycle.of("intel-pstate", tmp_path, "turbo")
    round_.kernel.remember("turbo unavailable", value=True)
    (change,) = round_.tune()
    assert change.state == "refused"
    assert "Operation not permitted" in change.reason
    round_.restore()
    assert round_.left() == {}


def test_policies_found_without_boost_stay_without(tmp_path: Path) -> None:
    """The switch for all brings every policy's up again."""
    kernel = FakeKernel(make_tree("amd-epp", tmp_path / "root"))
    kernel.write(f"{POLICY}/boost", "0")
    kernel.write(f"{CPU}/cpufreq/policy5/boost", "0")
    round_ = KnobCycle(kernel, tmp_path, {"turbo": cpu_power.TURBO_KNOB})
    round_.tune()
    assert {round_.text(path) for path in kernel.paths(f"{CPU}/cpufreq/policy*/boost")} == {"0"}
    round_.restore()
    assert round_.left() == {}
    assert round_.text(f"{POLICY}/boost") == "0"
    assert round_.text(f"{CPU}/cpufreq/policy1/boost") == "1"


def test_switches_of_policies_where_there_is_none_for_all(tmp_path: Path) -> None:
    root = make_tree("amd-epp", tmp_path / "root")
    (root / BOOST).unlink()
    round_ = KnobCycle(FakeKernel(root), tmp_path, {"turbo": cpu_power.TURBO_KNOB})
    changes = round_.tune()
    assert [change.state for change in changes] == ["written"] * 8
    assert round_.text(f"{CPU}/cpufreq/policy7/boost") == "0"
    round_.restore()
    assert round_.left() == {}


def test_drivers_without_a_switch_say_what_helps(tmp_path: Path) -> None:
    machine = Machine(files=FakeKernel(make_tree("arm-cpufreq", tmp_path)))
    assert "`frequency`" in cpu_power.TURBO_KNOB.survey(machine, QuietRequest()).unavailable


@pytest.mark.parametrize(("bit", "word"), [(1 << 38, "off"), (0, "on")])
def test_the_bit_of_intel_is_reported_and_never_written(
    bit: int, word: str, tmp_path: Path
) -> None:
    root = make_tree("cloud-vm", tmp_path)
    device = root / "dev/cpu/0/msr"
    device.parent.mkdir(parents=True)
    device.write_bytes(bytes(0x1A0) + (bit | 0x850089).to_bytes(8, "little"))
    before = device.read_bytes()
    kernel = FakeKernel(root)
    reason = cpu_power.TURBO_KNOB.survey(Machine(files=kernel), QuietRequest()).unavailable
    assert f"turbo is {word} (MSR 0x1a0)" in reason
    assert "firmware" in reason
    assert device.read_bytes() == before
    assert kernel.accepted == []


def test_an_unreadable_switch_is_a_reason(tmp_path: Path) -> None:
    root = make_tree("intel-pstate", tmp_path)
    (root / NO_TURBO).unlink()
    (root / NO_TURBO).mkdir()  # reading a folder fails for root, too
    state = cpu_power.TURBO_KNOB.survey(Machine(files=FakeKernel(root)), QuietRequest())
    assert NO_TURBO in " ".join((state.unavailable, *state.notes))
    assert NO_TURBO not in [setting.place for setting in state.settings]


# Preferences.


def test_preferences_and_biases_are_set_to_performance(tmp_path: Path) -> None:
    expected = _state_of(cpu_power.PREFERENCE_KNOB, make_tree("intel-pstate", tmp_path))
    assert expected[f"{POLICY}/energy_performance_preference"] == "performance"
    assert expected[f"{CPU}/cpu7/power/energy_perf_bias"] == "0"
    assert len(expected) == 16


@pytest.mark.parametrize("kind", ["intel-pstate", "amd-epp"])
def test_preferences_are_restored_one_by_one(kind: str, tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree(kind, tmp_path / "root"))
    for number, value in enumerate(("power", "balance_power", "performance", "37")):
        kernel.write(f"{CPU}/cpufreq/policy{number}/energy_performance_preference", value)
    round_ = KnobCycle(kernel, tmp_path)
    round_.tune()
    assert round_.text(f"{POLICY}/energy_performance_preference") == "performance"
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert round_.left() == {}


def test_preferences_are_refused_while_the_governor_is_performance(tmp_path: Path) -> None:
    """Why they are put back after it."""
    kernel = FakeKernel(make_tree("amd-epp", tmp_path))
    machine = Machine(files=kernel)
    place = f"{POLICY}/energy_performance_preference"
    setting = Setting(
        knob="preference", place=place, found="balance_performance", wanted="performance"
    )
    kernel.write(f"{POLICY}/scaling_governor", "performance")
    cpu_power.PREFERENCE_KNOB.write(machine, setting)
    with pytest.raises(WriteRefused) as refused:
        cpu_power.PREFERENCE_KNOB.restore(machine, setting)
    assert refused.value.code == errno.EBUSY
    kernel.write(f"{POLICY}/scaling_governor", "powersave")
    cpu_power.PREFERENCE_KNOB.restore(machine, setting)
    assert kernel.text(place) == "balance_performance"


def test_names_and_numbers_of_a_bias_are_equivalent() -> None:
    place = f"{CPU}/cpu0/power/energy_perf_bias"
    assert cpu_power.PREFERENCE_KNOB.same(place, "performance", "0")
    assert cpu_power.PREFERENCE_KNOB.same(place, "6", "normal")
    assert not cpu_power.PREFERENCE_KNOB.same(place, "6", "power")
    assert not cpu_power.PREFERENCE_KNOB.same(
        f"{POLICY}/energy_performance_preference", "0", "performance"
    )


def test_the_bias_of_an_offline_processor_is_left_alone(tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("intel-pstate", tmp_path))
    machine = Machine(files=kernel)
    place = f"{CPU}/cpu5/power/energy_perf_bias"
    setting = Setting(knob="preference", place=place, found="6", wanted="0")
    kernel.write(f"{CPU}/cpu5/online", "0")
    assert not kernel.exists(place)
    with pytest.raises(SkippedWrite, match="cpu5 is offline"):
        cpu_power.PREFERENCE_KNOB.write(machine, setting)
    kernel.write(f"{CPU}/cpu5/online", "1")
    cpu_power.PREFERENCE_KNOB.write(machine, setting)
    assert kernel.text(place) == "0"


def test_machines_without_preferences_say_so(tmp_path: Path) -> None:
    machine = Machine(files=FakeKernel(make_tree("arm-cpufreq", tmp_path)))
    state = cpu_power.PREFERENCE_KNOB.survey(machine, QuietRequest())
    assert "no policy has energy_performance_preference" in state.unavailable
