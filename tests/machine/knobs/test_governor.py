"""The governor: choices, restored tunables, and side effects of a change."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.machine.fake_kernel import FakeKernel
from tests.machine.knob_cycle import KnobCycle
from tests.machine.trees import make_tree
from torchyard.errors import MissingTool
from torchyard.machine.knob import Machine, SkippedWrite
from torchyard.machine.knobs.cpu_power import GOVERNOR_KNOB
from torchyard.machine.model import QuietRequest, Setting
from torchyard.machine.system.file_tree import WriteRefused

CPUFREQ = "sys/devices/system/cpu/cpufreq"
POLICY = f"{CPUFREQ}/policy0"


def _with_governor(kernel: FakeKernel, governor: str) -> None:
    for policy in kernel.paths(f"{CPUFREQ}/policy*"):
        kernel.write(f"{policy}/scaling_governor", governor)


def test_every_policy_gets_the_governor_performance(tmp_path: Path) -> None:
    round_ = KnobCycle.of("amd-acpi", tmp_path, "governor")
    changes = round_.tune()
    assert [change.state for change in changes] == ["written"] * 8
    for policy in round_.kernel.paths(f"{CPUFREQ}/policy*"):
        assert round_.text(f"{policy}/scaling_governor") == "performance"
    assert not round_.kernel.exists(f"{CPUFREQ}/ondemand"), "its tunables are gone with it"


def test_tunables_that_somebody_had_set_are_restored(tmp_path: Path) -> None:
    root = make_tree("amd-acpi", tmp_path / "root")
    kernel = FakeKernel(root)
    kernel.write(f"{CPUFREQ}/ondemand/up_threshold", "40")
    kernel.write(f"{CPUFREQ}/ondemand/powersave_bias", "7")
    round_ = KnobCycle(kernel, tmp_path)
    round_.tune()
    round_.restore()
    assert round_.left() == {}
    assert round_.text(f"{CPUFREQ}/ondemand/up_threshold") == "40"


def test_tunables_of_each_policy_are_restored(tmp_path: Path) -> None:
    """Some drivers of Arm keep them for every policy."""
    root = make_tree("arm-cpufreq", tmp_path / "root")
    for number, rate in enumerate(("100", "200", "300", "400")):
        folder = root / CPUFREQ / f"policy{number}" / "schedutil"
        folder.mkdir()
        (folder / "rate_limit_us").write_text(rate + "\n")
    (root / CPUFREQ / "schedutil" / "rate_limit_us").unlink()
    (root / CPUFREQ / "schedutil").rmdir()
    round_ = KnobCycle(FakeKernel(root), tmp_path)
    round_.tune()
    assert not round_.kernel.exists(f"{POLICY}/schedutil")
    round_.restore()
    assert round_.left() == {}


@settings(max_examples=25, deadline=None)
@given(low=st.integers(1, 99), gap=st.integers(1, 99))
@example(low=85, gap=10)  # down is refused until up is there
@example(low=5, gap=10)  # up is refused until down is there
def test_thresholds_of_conservative_are_restored_whatever_they_are(
    tmp_path_factory: pytest.TempPathFactory, low: int, gap: int
) -> None:
    """Each is refused while it crosses the other, so the order of writing depends on the values."""
    high = min(low + gap, 100)
    root = tmp_path_factory.mktemp("conservative")
    folder = root / CPUFREQ / "conservative"
    folder.mkdir(parents=True)
    for name, value in {"down_threshold": 20, "freq_step": 5, "up_threshold": 80}.items():
        (folder / name).write_text(f"{value}\n")
    machine = Machine(files=FakeKernel(root))
    place = f"{CPUFREQ}/conservative"
    expected = f"down_threshold={low} freq_step=9 up_threshold={high}"
    setting = Setting(knob="governor", place=place, found=expected, wanted=None)
    GOVERNOR_KNOB.restore(machine, setting)
    assert GOVERNOR_KNOB.read(machine, place) == expected


def test_a_tunable_that_is_refused_for_good_is_reported(tmp_path: Path) -> None:
    round_ = KnobCycle.of("amd-acpi", tmp_path, "governor")
    round_.kernel.write(f"{CPUFREQ}/ondemand/up_threshold", "40")
    round_.kernel.write(f"{CPUFREQ}/ondemand/sampling_rate", "20000")
    round_.found = round_.kernel.snapshot()
    round_.tune()
    round_.kernel.refuse(f"{CPUFREQ}/ondemand/up_threshold", errno.EINVAL)
    restored = round_.restore()
    assert restored is not None
    assert [item.setting.place for item in restored.missing] == [f"{CPUFREQ}/ondemand"]
    assert "up_threshold" in restored.missing[0].reason
    # The one that is not refused is back nevertheless.
    assert round_.text(f"{CPUFREQ}/ondemand/sampling_rate") == "20000"


def test_the_clock_of_userspace_is_restored(tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("amd-acpi", tmp_path / "root"))
    _with_governor(kernel, "userspace")
    for policy in kernel.paths(f"{CPUFREQ}/policy*"):
        kernel.write(f"{policy}/scaling_setspeed", "2000000")
    round_ = KnobCycle(kernel, tmp_path)
    round_.tune()
    assert round_.text(f"{POLICY}/scaling_setspeed") == "<unsupported>"
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert round_.left() == {}


@pytest.mark.parametrize("kind", ["intel-pstate", "amd-epp"])
def test_preferences_are_restored_with_the_governor_alone(kind: str, tmp_path: Path) -> None:
    """AMD's driver leaves the preference at performance when the governor goes back."""
    kernel = FakeKernel(make_tree(kind, tmp_path / "root"), governor_resets_turbo=True)
    if kind == "intel-pstate":
        kernel.write("sys/devices/system/cpu/intel_pstate/no_turbo", "1")
    kernel.write(f"{POLICY}/energy_performance_preference", "power")
    round_ = KnobCycle(kernel, tmp_path, {"governor": GOVERNOR_KNOB})
    round_.tune()
    assert round_.text(f"{POLICY}/energy_performance_preference") == "performance"
    round_.restore()
    assert round_.left() == {}
    assert round_.text(f"{POLICY}/energy_performance_preference") == "power"


def test_policies_without_the_governor_are_reported(tmp_path: Path) -> None:
    root = make_tree("arm-cpufreq", tmp_path / "root")
    choices = root / POLICY / "scaling_available_governors"
    choices.write_text("schedutil powersave \n")
    round_ = KnobCycle(FakeKernel(root), tmp_path, {"governor": GOVERNOR_KNOB})
    round_.survey()
    state = round_.state("governor")
    assert any(f"/{POLICY} has no governor 'performance'" in note for note in state.notes)
    assert f"{POLICY}/scaling_governor" not in [item.place for item in state.settings]
    for policy in round_.kernel.paths(f"{CPUFREQ}/policy*"):
        (root / policy / "scaling_available_governors").write_text("schedutil\n")
    round_.survey()
    assert "no governor 'performance', only schedutil" in round_.state("governor").unavailable


def test_a_policy_of_offline_processors_is_left_alone(tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("amd-acpi", tmp_path))
    machine = Machine(files=kernel)
    place = f"{CPUFREQ}/policy5/scaling_governor"
    setting = Setting(knob="governor", place=place, found="ondemand", wanted="performance")
    kernel.write("sys/devices/system/cpu/cpu5/online", "0")
    with pytest.raises(SkippedWrite, match=r"no CPU of .*policy5 is online"):
        GOVERNOR_KNOB.write(machine, setting)
    with pytest.raises(WriteRefused, match="busy"):
        GOVERNOR_KNOB.restore(machine, setting)
    places = [item.place for item in GOVERNOR_KNOB.survey(machine, QuietRequest()).settings]
    assert place not in places
    assert f"{CPUFREQ}/policy4/scaling_governor" in places


def test_tunables_of_a_governor_that_is_not_used_cannot_be_read(tmp_path: Path) -> None:
    machine = Machine(files=FakeKernel(make_tree("amd-acpi", tmp_path)))
    with pytest.raises(MissingTool, match="no policy has that governor"):
        GOVERNOR_KNOB.read(machine, f"{CPUFREQ}/conservative")


def test_tunables_with_blanks_survive(tmp_path: Path) -> None:
    folder = tmp_path / CPUFREQ / "interactive"
    folder.mkdir(parents=True)
    (folder / "target_loads").write_text("80 1300000:90 '\n")
    machine = Machine(files=FakeKernel(tmp_path))
    place = f"{CPUFREQ}/interactive"
    value = GOVERNOR_KNOB.read(machine, place)
    (folder / "target_loads").write_text("85\n")
    GOVERNOR_KNOB.restore(machine, Setting(knob="governor", place=place, found=value, wanted=None))
    assert (folder / "target_loads").read_text() == "80 1300000:90 '\n"


def test_without_a_driver_it_is_unavailable(tmp_path: Path) -> None:
    state = GOVERNOR_KNOB.survey(
        Machine(files=FakeKernel(make_tree("cloud-vm", tmp_path))), QuietRequest()
    )
    assert "has no policy" in state.unavailable
    assert state.settings == ()
