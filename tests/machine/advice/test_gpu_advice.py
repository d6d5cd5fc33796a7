"""Advice about GPUs, and when measurements are not trustworthy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machine.amd_cards import DEVICE, AmdDriver
from tests.machine.gpu.test_nvidia import make_process
from tests.machine.nvml_cards import CARD, add_process, geforce, h200, machine_of, t4
from tests.machine.recorded_nvml import RecordedNvml
from torchyard.machine.advice import advise_reading
from torchyard.machine.facts import GpuView, read_gpus
from torchyard.machine.knob import Machine
from torchyard.machine.model import Advice, MachineView


def advice_of(nvml: RecordedNvml, root: Path) -> dict[str, Advice]:
    found = advise_reading(read_gpus(machine_of(nvml, root)))
    return {advice.name: advice for advice in found}


def fit(advice: dict[str, Advice]) -> bool:
    return MachineView(facts=(), advice=tuple(advice.values())).fit


def set_reasons(nvml: RecordedNvml, bits: int) -> None:
    nvml.answer("nvmlDeviceGetCurrentClocksEventReasons", CARD, value=bits)


def test_nothing_about_no_gpus() -> None:
    assert advise_reading(GpuView()) == ()


def test_locking_the_clock_of_an_idle_card_is_advised(tmp_path: Path) -> None:
    advice = advice_of(h200(), tmp_path)
    assert list(advice) == ["gpu-clocks"]
    assert advice["gpu-clocks"].effect == "large"
    assert advice["gpu-clocks"].needs_root
    assert "quiet --profile gpu" in advice["gpu-clocks"].fix
    assert fit(advice)


def test_a_card_in_use_needs_no_lock(tmp_path: Path) -> None:
    nvml = h200()
    set_reasons(nvml, 0x2)
    assert advice_of(nvml, tmp_path) == {}


def test_no_advice_about_what_cannot_be_read(tmp_path: Path) -> None:
    nvml = h200()
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetPersistenceMode"):
        nvml.refuse(name, CARD)
    assert advice_of(nvml, tmp_path) == {}


def test_persistence(tmp_path: Path) -> None:
    advice = advice_of(t4(), tmp_path)
    assert "persistence mode is off" in advice["gpu-persistence"].what
    assert "--only nvidia-persistence" in advice["gpu-persistence"].fix


@pytest.mark.parametrize(
    ("bits", "said"),
    [
        (0x20, "software thermal"),
        (0x40 | 0x8, "hardware thermal, hardware slowdown"),
        (0x80, "power brake"),
    ],
)
def test_a_card_that_slows_itself_down_is_unfit(tmp_path: Path, bits: int, said: str) -> None:
    nvml = h200()
    set_reasons(nvml, bits)
    advice = advice_of(nvml, tmp_path)
    assert advice["gpu-slowdown"].unfit
    assert said in advice["gpu-slowdown"].what
    assert not fit(advice)


def test_the_power_cap_is_advice_and_not_unfit(tmp_path: Path) -> None:
    advice = advice_of(h200("busy"), tmp_path)
    assert "power cap" in advice["gpu-power-cap"].what
    assert fit(advice)


def test_a_lowered_power_limit(tmp_path: Path) -> None:
    nvml = h200()
    nvml.answer("nvmlDeviceGetPowerManagementLimit", CARD, value=500_000)
    advice = advice_of(nvml, tmp_path)["gpu-power-limit"]
    assert "500 of 700 W" in advice.what
    assert "--only nvidia-power" in advice.fix


def test_others_that_compute_make_it_unfit(tmp_path: Path) -> None:
    nvml = h200()
    for pid in (60, 61, 62, 63, 64):
        add_process(nvml, pid)
        make_process(tmp_path, pid, 1, f"job{pid}")
    advice = advice_of(nvml, tmp_path)
    assert not fit(advice)
    assert advice["gpu-processes"].what == (
        "GPU 0: used by other processes (60 job60, 61 job61, 62 job62, 2 more)"
    )


def test_a_desktop_is_a_small_disturbance(tmp_path: Path) -> None:
    nvml = geforce()
    add_process(nvml, 90, kind="Graphics")
    make_process(tmp_path, 90, 1, "Xorg")
    advice = advice_of(nvml, tmp_path)
    assert advice["gpu-display"].effect == "small"
    assert fit(advice)


def test_processes_that_cannot_be_distinguished_from_ours(tmp_path: Path) -> None:
    nvml = h200()
    add_process(nvml, 4711)
    advice = advice_of(nvml, tmp_path)
    assert "1 process(es) not visible" in advice["gpu-hidden-processes"].what
    assert fit(advice)


@pytest.mark.parametrize(
    ("modes", "said", "reboot"),
    [
        ([0, 0], "ECC is off", False),
        ([1, 0], "on now and off after the next reset", True),
        ([0, 1], "off now and on after the next reset", True),
    ],
)
def test_ecc(tmp_path: Path, modes: list[int], said: str, reboot: bool) -> None:
    nvml = h200()
    nvml.answer("nvmlDeviceGetEccMode", CARD, value=modes)
    advice = advice_of(nvml, tmp_path)["gpu-ecc"]
    assert said in advice.what
    assert advice.needs_reboot is reboot


def test_slices(tmp_path: Path) -> None:
    nvml = h200()
    nvml.answer("nvmlDeviceGetMigMode", CARD, value=[1, 1])
    assert "partitioned with MIG" in advice_of(nvml, tmp_path)["gpu-mig"].what


class TestAmd:
    """The same about AMD's cards."""

    def advice(self, driver: AmdDriver) -> dict[str, Advice]:
        return {advice.name: advice for advice in advise_reading(read_gpus(Machine(files=driver)))}

    def test_a_free_clock(self, tmp_path: Path) -> None:
        advice = self.advice(AmdDriver("mi300x", tmp_path))
        assert "performance level auto" in advice["gpu-clocks"].what
        assert fit(advice)

    def test_a_capped_one(self, tmp_path: Path) -> None:
        driver = AmdDriver("mi300x", tmp_path)
        driver.write(f"{DEVICE}/power_dpm_force_performance_level", "perf_determinism")
        assert self.advice(driver) == {}

    def test_heat(self, tmp_path: Path) -> None:
        driver = AmdDriver("mi300x", tmp_path)
        (tmp_path / DEVICE / "hwmon/hwmon5/temp2_input").write_text("100000\n")
        advice = self.advice(driver)
        assert advice["gpu-slowdown"].unfit
        assert "100 °C" in advice["gpu-slowdown"].what

    def test_other_processes(self, tmp_path: Path) -> None:
        driver = AmdDriver("mi300x", tmp_path)
        driver.add_process(500, 2**30)
        make_process(tmp_path, 500, 1, "trainer")
        assert not fit(self.advice(driver))

    def test_a_lowered_power_limit_has_no_knob_here(self, tmp_path: Path) -> None:
        driver = AmdDriver("mi300x", tmp_path)
        (tmp_path / DEVICE / "hwmon/hwmon5/power1_cap").write_text("500000000\n")
        advice = self.advice(driver)["gpu-power-limit"]
        assert "500 of 750 W" in advice.what
        assert advice.fix == ""
