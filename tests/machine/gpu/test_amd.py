"""AMD's cards from their files: MI200, MI300X and RDNA 3."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machine.amd_cards import ADDRESS, DEVICE, AmdDriver, make_card
from tests.machine.gpu.test_nvidia import make_process
from torchyard.machine.facts import gpu_facts, read_gpus
from torchyard.machine.gpu.amd import (
    AmdSensors,
    amd_cards,
    card_at,
    clock_now,
    clock_states,
    graphics_limits,
    read_amd,
)
from torchyard.machine.gpu.library import GpuLibraries
from torchyard.machine.knob import Machine
from torchyard.machine.system.file_tree import FileTree

GOLDEN_MI200 = """\
name: AMD INSTINCT MI210
location: card1 at 0000:83:00.0
chip: gfx90a
VBIOS: 113-D67301-063
performance level: auto
graphics clock: 800 MHz
maximum graphics clock: 1700 MHz
graphics clock limits: 500 to 1700 MHz
memory clock: 1600 MHz
maximum memory clock: 1600 MHz
power: 41 W
power limit: 300 W
default power limit: 300 W
temperature: 38 °C
slowdown temperature: 105 °C
PCIe link: 16.0 GT/s PCIe x16
maximum PCIe link: 16.0 GT/s PCIe x16
utilization: 3 %
processes: none
"""


def test_every_fact_of_an_mi200(tmp_path: Path) -> None:
    machine = Machine(
        files=FileTree(make_card("mi200", tmp_path)),
        gpus=GpuLibraries(nvml_because="no NVIDIA driver is loaded"),
    )
    facts = [fact for fact in gpu_facts(read_gpus(machine)) if fact.section == "gpu 0"]
    assert "".join(f"{fact.name}: {fact.text}\n" for fact in facts) == GOLDEN_MI200
    (nvidia,) = [fact for fact in gpu_facts(read_gpus(machine)) if fact.section == "gpu"]
    assert nvidia.unavailable == "no NVIDIA driver is loaded"


@pytest.mark.parametrize(
    ("kind", "chip", "name", "power_w", "temperature_c"),
    [
        ("mi200", "gfx90a", "AMD INSTINCT MI210", 41.0, 38),
        ("mi300x", "gfx942", "AMD Instinct MI300X OAM", 139.0, 41),
        ("rdna3", "gfx1100", "AMD device 0x744c", 23.0, 47),
    ],
)
def test_chips_differ(
    tmp_path: Path, kind: str, chip: str, name: str, power_w: float, temperature_c: int
) -> None:
    (card,) = read_amd(FileTree(make_card(kind, tmp_path)))
    assert card.chip.value == chip
    assert card.name.value == name
    assert card.power_w.value == power_w
    assert card.temperature_c.value == temperature_c


def test_only_amd_cards_count(tmp_path: Path) -> None:
    files = FileTree(make_card("mi200", tmp_path))
    assert amd_cards(files) == ("sys/class/drm/card1",)
    assert card_at(files, ADDRESS) == "sys/class/drm/card1"
    assert card_at(files, "0000:01:00.0") is None
    assert amd_cards(FileTree(tmp_path / "none")) == ()


def test_a_card_without_power_management_says_why(tmp_path: Path) -> None:
    make_card("rdna3", tmp_path)
    for name in ("pp_dpm_sclk", "pp_od_clk_voltage", "power_dpm_force_performance_level"):
        (tmp_path / DEVICE / name).unlink()
    (card,) = read_amd(FileTree(tmp_path))
    assert "pp_dpm_sclk" in card.graphics_clock_mhz.because
    assert "pp_od_clk_voltage" in card.graphics_limits_mhz.because
    assert "No such file" in card.performance_level.because
    assert "power1_cap" in card.power_limit_w.because


def test_a_card_outside_the_compute_driver(tmp_path: Path) -> None:
    make_card("mi200", tmp_path)
    (tmp_path / "sys/class/kfd/kfd/topology/nodes/1/properties").write_text("location_id 7\n")
    (card,) = read_amd(FileTree(tmp_path))
    assert "kfd" in card.chip.because
    assert "kfd" in card.processes.because


def test_processes_of_the_card(tmp_path: Path) -> None:
    driver = AmdDriver("mi300x", tmp_path)
    driver.add_process(500, 3 * 2**30)
    driver.add_process(501, 0)
    make_process(tmp_path, 500, 1, "trainer")
    (card,) = read_amd(driver)
    (process,) = card.processes.value or ()
    assert (process.pid, process.name, process.owner) == (500, "trainer", "other")
    assert process.memory_bytes == 3 * 2**30


class TestClocks:
    """Formats of the clock files."""

    def write(self, root: Path, text: str) -> FileTree:
        (root / "clocks").write_text(text)
        return FileTree(root)

    def test_the_star_marks_the_present_one(self, tmp_path: Path) -> None:
        files = self.write(tmp_path, "0: 500Mhz \n1: 1339Mhz *\n2: 1700Mhz \n")
        states = clock_states(files, "clocks")
        assert states.value == ((500, False), (1339, True), (1700, False))
        assert clock_now(states).value == 1339

    def test_deep_sleep_has_a_letter(self, tmp_path: Path) -> None:
        states = clock_states(self.write(tmp_path, "S: 96Mhz *\n0: 500Mhz\n"), "clocks")
        assert clock_now(states).value == 96

    def test_no_star(self, tmp_path: Path) -> None:
        states = clock_states(self.write(tmp_path, "0: 500Mhz\n"), "clocks")
        assert clock_now(states).because == "no clock is marked as present"

    def test_a_card_with_an_error(self, tmp_path: Path) -> None:
        states = clock_states(self.write(tmp_path, "unavailable\n"), "clocks")
        assert states.because == "/clocks lists no clocks"
        assert clock_now(states).because == states.because

    def test_limits_while_the_clock_lies_between(self, tmp_path: Path) -> None:
        # GIVEN an MI200 that lists its present clock among its limits
        driver = AmdDriver("mi200", tmp_path)
        driver.present_clock_between()
        assert graphics_limits(driver, "sys/class/drm/card1").value == (500, 1700)

    def test_limits_are_not_those_of_the_memory(self, tmp_path: Path) -> None:
        make_card("mi300x", tmp_path)
        table = tmp_path / DEVICE / "pp_od_clk_voltage"
        table.write_text("OD_MCLK:\n0: 900Mhz\n1: 1300Mhz\nOD_SCLK:\n0: 500Mhz\n1: 2100Mhz\n")
        assert graphics_limits(FileTree(tmp_path), "sys/class/drm/card1").value == (500, 2100)

    def test_voltages_are_no_limits(self, tmp_path: Path) -> None:
        make_card("rdna3", tmp_path)
        (tmp_path / DEVICE / "pp_od_clk_voltage").write_text("OD_VDDGFX_OFFSET:\n0mV\n")
        limits = graphics_limits(FileTree(tmp_path), "sys/class/drm/card1")
        assert "no graphics clock limits" in limits.because


def test_sensors_that_are_missing(tmp_path: Path) -> None:
    sensors = AmdSensors(FileTree(tmp_path), "sys/class/drm/card9")
    assert sensors.graphics_clock_mhz().because
    assert sensors.power_w().because
    assert sensors.temperature_c().because


def test_a_sensor_that_says_nonsense(tmp_path: Path) -> None:
    make_card("mi200", tmp_path)
    (tmp_path / DEVICE / "hwmon/hwmon5/power1_average").write_text("\n")
    sensors = AmdSensors(FileTree(tmp_path), "sys/class/drm/card1")
    assert "contains no number" in sensors.power_w().because
