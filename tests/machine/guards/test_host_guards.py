"""Host readings around a block on every kind of machine: numbers, or a reason for none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.machine.trees import KINDS, make_tree
from torchyard.core.block import GuardReading
from torchyard.machine.guards import host_guards
from torchyard.machine.guards import host_guards as pressure
from torchyard.machine.guards import host_guards as swapping
from torchyard.machine.guards import host_guards as temperature
from torchyard.machine.guards import host_guards as throttling
from torchyard.machine.guards.host_guards import READERS, Reader
from torchyard.machine.knob import Machine
from torchyard.machine.system.file_tree import FileTree, HeldFile

CPUS = "sys/devices/system/cpu"
Open = Callable[[Machine], Reader]


def opened(open_reader: Open, folder: Path, **files: str) -> Reader:
    """The reader on a machine that has these files; __ in a name stands for a slash."""
    for name, text in files.items():
        write(folder, name.replace("__", "/"), text)
    return open_reader(Machine(files=FileTree(folder)))


def write(folder: Path, path: str, text: str) -> None:
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")


def test_readers_fill_different_fields_that_a_record_has() -> None:
    readers = [open_reader(Machine(files=FileTree(Path("/nowhere")))) for open_reader in READERS]
    names = [reader.reading for reader in readers]
    assert len(set(names)) == len(names) == len({reader.name for reader in readers})
    assert all(hasattr(GuardReading(), name) for name in names)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_on_every_kind_of_machine_there_is_a_number_or_a_reason(kind: str, tmp_path: Path) -> None:
    machine = Machine(files=FileTree(make_tree(kind, tmp_path)))
    for open_reader in READERS:
        reader = open_reader(machine)
        number = reader.read()
        assert (number is None) == bool(reader.unavailable), reader
        assert not reader.unavailable.endswith(".")
        reader.close()
        assert reader.read() is None


def test_an_intel_server_has_all_but_cooling_and_an_arm_server_has_not(tmp_path: Path) -> None:
    def missing(kind: str) -> set[str]:
        machine = Machine(files=FileTree(make_tree(kind, tmp_path / kind)))
        readers = [open_reader(machine) for open_reader in READERS]
        return {reader.name for reader in readers if reader.unavailable}

    assert missing("intel-pstate") == {"cooling devices"}
    assert missing("arm-bare") == {"cooling devices", "temperature", "throttle counters"}


def test_swapped_pages_are_those_in_and_out(tmp_path: Path) -> None:
    text = "nr_free_pages 5\npswpin 7\npswpout 30\nxpswpin 900\n"
    reader = opened(swapping.open_swapping, tmp_path, proc__vmstat=text)
    assert reader.read() == 37
    write(tmp_path, "proc/vmstat", text.replace("pswpin 7", "pswpin 1007"))
    assert reader.read() == 1037


@pytest.mark.parametrize("text", ["", "nr_free_pages 5\n", "a 1\npswpin 7\n"])
def test_a_kernel_without_swap_is_reported(text: str, tmp_path: Path) -> None:
    reader = opened(swapping.open_swapping, tmp_path, proc__vmstat=text)
    assert "without swap" in reader.unavailable
    assert reader.read() is None


def test_a_long_table_is_read_to_its_end(tmp_path: Path) -> None:
    text = "".join(f"counter_{number} {number}\n" for number in range(3000))
    reader = opened(swapping.open_swapping, tmp_path, proc__vmstat=text + "pswpin 3\npswpout 4")
    assert reader.read() == 7


def test_pressure_is_the_time_of_some(tmp_path: Path) -> None:
    text = "some avg10=1.00 avg60=0.00 avg300=0.00 total=1234\nfull avg10=0.00 total=99\n"
    assert (
        opened(pressure.open_memory_pressure, tmp_path, proc__pressure__memory=text).read()
        == 1_234_000
    )


def test_disabled_pressure_accounting_is_unavailable(tmp_path: Path) -> None:
    reader = opened(pressure.open_memory_pressure, tmp_path)
    assert reader.unavailable == "/proc/pressure/memory: No such file or directory"
    reader = opened(pressure.open_memory_pressure, tmp_path, proc__pressure__memory="\n")
    assert "has no total" in reader.unavailable


def throttle_tree(folder: Path, *, packages: int, cores: int, threads: int) -> None:
    """Every logical processor shows its core's counter and its package's."""
    for cpu in range(packages * cores * threads):
        core = cpu % (packages * cores)
        package = core // cores
        siblings = ",".join(str(core + packages * cores * thread) for thread in range(threads))
        write(folder, f"{CPUS}/cpu{cpu}/topology/physical_package_id", f"{package}\n")
        write(folder, f"{CPUS}/cpu{cpu}/topology/thread_siblings_list", f"{siblings}\n")
        counters = f"{CPUS}/cpu{cpu}/thermal_throttle"
        write(folder, f"{counters}/core_throttle_count", f"{1000 + core}\n")
        write(folder, f"{counters}/package_throttle_count", f"{100_000 * (package + 1)}\n")


def test_each_core_and_each_package_is_counted_once(tmp_path: Path) -> None:
    throttle_tree(tmp_path, packages=2, cores=2, threads=2)
    reader = opened(throttling.open_throttling, tmp_path)
    cores, packages = sum(range(1000, 1004)), 100_000 + 200_000
    assert reader.read() == cores + packages
    write(tmp_path, f"{CPUS}/cpu1/thermal_throttle/core_throttle_count", "1005\n")
    assert reader.read() == cores + packages + 4


def test_with_very_many_cores_packages_are_counted_only(tmp_path: Path) -> None:
    throttle_tree(tmp_path, packages=2, cores=throttling.MOST_CORES // 2 + 1, threads=1)
    reader = opened(throttling.open_throttling, tmp_path)
    assert reader.read() == 300_000
    reader.close()


def test_a_counter_that_vanishes_gives_no_number_instead_of_a_smaller_one(tmp_path: Path) -> None:
    throttle_tree(tmp_path, packages=1, cores=2, threads=1)
    reader = opened(throttling.open_throttling, tmp_path)
    write(tmp_path, f"{CPUS}/cpu1/thermal_throttle/core_throttle_count", "")
    assert reader.read() is None


def cooling_device(folder: Path, number: int, kind: str, state: str) -> None:
    device = f"sys/class/thermal/cooling_device{number}"
    write(folder, f"{device}/type", f"{kind}\n")
    write(folder, f"{device}/cur_state", f"{state}\n")


def test_the_highest_state_of_what_cools_processors(tmp_path: Path) -> None:
    for number, (kind, state) in enumerate(
        [
            ("Fan", "9"),
            ("intel_powerclamp", "-1"),
            ("cpufreq-cpu0", "0"),
            ("thermal-cpufreq-1", "2"),
        ]
    ):
        cooling_device(tmp_path, number, kind, state)
    reader = opened(host_guards.open_cooling, tmp_path)
    assert reader.read() == 2
    write(tmp_path, "sys/class/thermal/cooling_device3/cur_state", "0\n")
    assert reader.read() == 0
    assert not reader.grows


def test_fans_alone_are_no_cooling_of_processors(tmp_path: Path) -> None:
    cooling_device(tmp_path, 0, "Fan", "3")
    reader = opened(host_guards.open_cooling, tmp_path)
    assert "no CPU cooling device" in reader.unavailable


def test_not_every_device_of_a_large_machine_is_read(tmp_path: Path) -> None:
    for number in range(host_guards.MOST_DEVICES + 5):
        cooling_device(tmp_path, number, "Processor", "0")
    reader = opened(host_guards.open_cooling, tmp_path)
    assert len(reader.files) == host_guards.MOST_DEVICES
    reader.close()


def test_the_hottest_zone_of_the_processor_counts(tmp_path: Path) -> None:
    for number, (kind, text) in enumerate(
        [("acpitz", "90000"), ("cpu0-thermal", "41500"), ("cpu1-thermal", "63250")]
    ):
        write(tmp_path, f"sys/class/thermal/thermal_zone{number}/type", f"{kind}\n")
        write(tmp_path, f"sys/class/thermal/thermal_zone{number}/temp", f"{text}\n")
    reader = opened(temperature.open_temperature, tmp_path)
    assert reader.read() == 63.25
    # A sensor can refuse for a moment.
    write(tmp_path, "sys/class/thermal/thermal_zone2/temp", "")
    assert reader.read() == 41.5


@pytest.mark.parametrize(
    ("chip", "labels", "wanted"),
    [
        ("coretemp", {1: "Package id 0", 2: "Core 0"}, 50.0),
        ("k10temp", {1: "Tctl", 3: "Tccd1"}, 50.0),
        ("cpu_thermal", {}, 80.0),
        ("nvme", {1: "Composite"}, None),
    ],
)
def test_without_zones_the_hardware_monitor_is_asked(
    chip: str, labels: dict[int, str], wanted: float | None, tmp_path: Path
) -> None:
    folder = "sys/class/hwmon/hwmon2"
    write(tmp_path, f"{folder}/name", f"{chip}\n")
    for number in (1, 2, 3):
        write(tmp_path, f"{folder}/temp{number}_input", "50000\n" if number == 1 else "80000\n")
        if number in labels:
            write(tmp_path, f"{folder}/temp{number}_label", f"{labels[number]}\n")
    reader = opened(temperature.open_temperature, tmp_path)
    assert reader.read() == wanted
    assert bool(reader.unavailable) == (wanted is None)


def test_an_open_file_follows_the_kernel_and_reports_read_errors(tmp_path: Path) -> None:
    tree = FileTree(tmp_path)
    write(tmp_path, "proc/number", "1\n")
    file = tree.hold("proc/number")
    assert (file.read(), file.because) == (b"1\n", "")
    write(tmp_path, "proc/number", "22\n")
    assert file.read() == b"22\n"
    file.close()
    file.close()
    assert file.read() == b""
    assert tree.hold("proc/none").because == "/proc/none: No such file or directory"
    assert tree.hold("proc").because == "/proc: Is a directory"


def test_a_file_of_this_kernel_is_generated_for_every_reading() -> None:
    file = FileTree().hold("proc/self/stat")
    if file.because:
        pytest.skip(f"no live /proc: {file.because}")
    first = file.read()
    total = 0
    while file.read() == first:  # the CPU time in it grows
        total += 1
        assert total < 10**7
    file.close()


def test_an_open_file_is_not_inherited(tmp_path: Path) -> None:
    import os

    write(tmp_path, "number", "1\n")
    file = HeldFile(tmp_path / "number", "/number")
    assert file._descriptor is not None
    assert not os.get_inheritable(file._descriptor)
    file.close()
