"""Readings around blocks: differences and states, slow and vanishing readers, notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.machine.trees import make_tree
from torchyard.core.block import GuardReading
from torchyard.machine.guards.block_check import guard_states
from torchyard.machine.guards.host_guards import SLOW_READING_S, HostGuards, Number, Reader
from torchyard.machine.knob import Machine
from torchyard.machine.system.file_tree import FileTree

VMSTAT = "nr_free_pages 5\npswpin {}\npswpout 0\n"
PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tree("intel-pstate", tmp_path)


def test_what_grew_while_the_block_ran_and_how_things_stood_after_it(folder: Path) -> None:
    (folder / "proc/vmstat").write_text(VMSTAT.format(100))
    (folder / "proc/pressure/memory").write_text(PRESSURE.format(50))
    with HostGuards(Machine(files=FileTree(folder))) as watch:
        watch.begin()
        (folder / "proc/vmstat").write_text(VMSTAT.format(107))
        (folder / "proc/pressure/memory").write_text(PRESSURE.format(53))
        throttle = "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"
        (folder / throttle).write_text("2\n")
        (folder / "sys/class/thermal/thermal_zone0/temp").write_text("55500\n")
        seen = watch.end()
        assert (seen.pop("watched_ns") or 0) > 0
        assert seen == {
            "swapped_pages": 7,
            "memory_stall_ns": 3000,
            "throttle_events": 2,
            "cpu_temperature_c": 55.5,
        }
        watch.begin()
        assert watch.end()["swapped_pages"] == 0
    assert GuardReading(**seen).swapped_pages == 7  # type: ignore[arg-type]


def test_each_reader_has_a_state_and_those_that_cannot_read_are_left_out(folder: Path) -> None:
    (folder / "proc/vmstat").unlink()
    with HostGuards(Machine(files=FileTree(folder))) as watch:
        assert watch.states == {
            "swap": "/proc/vmstat: No such file or directory",
            "memory pressure": "",
            "throttle counters": "",
            "cooling devices": "/sys/class/thermal has no CPU cooling device",
            "temperature": "",
        }
        watch.begin()
        assert "swapped_pages" not in watch.end()


def test_a_counter_that_vanishes_or_is_reset_gives_no_number(folder: Path) -> None:
    with HostGuards(Machine(files=FileTree(folder))) as watch:
        watch.begin()
        (folder / "proc/vmstat").write_text("gone\n")
        assert watch.end()["swapped_pages"] is None
        watch.begin()
        (folder / "proc/vmstat").write_text(VMSTAT.format(9))
        assert watch.end()["swapped_pages"] is None
        watch.begin()
        (folder / "proc/vmstat").write_text(VMSTAT.format(3))
        assert watch.end()["swapped_pages"] == 0


def reader_of(numbers: Iterator[Number], *, grows: bool) -> Callable[[Machine], Reader]:
    return lambda _: Reader(
        name="made up",
        reading="swapped_pages",
        grows=grows,
        parse=lambda _: next(numbers),
    )


def test_a_slow_reader_is_left_out_with_the_reason() -> None:
    """The clock is the system's border: it says that each reading took two milliseconds."""
    now = iter(range(0, 10**9, 2_000_000))
    assert SLOW_READING_S < 0.002
    open_reader = reader_of(iter(range(100)), grows=True)
    watch = HostGuards(readers=[open_reader], clock=lambda: next(now))
    assert watch.states == {"made up": "too slow: a reading takes 2.0 ms"}
    watch.begin()
    assert list(watch.end()) == ["watched_ns"]


def test_one_slow_reading_of_several_is_tolerated() -> None:
    ticks = iter([0, 5_000_000, 5_000_000, 5_010_000, 5_010_000, 5_020_000])
    open_reader = reader_of(iter(range(100)), grows=True)
    assert HostGuards(readers=[open_reader], clock=lambda: next(ticks)).states == {"made up": ""}


def test_totals_are_read_twice_and_states_once() -> None:
    taken = [0]

    def numbers() -> Iterator[int]:
        while True:
            taken[0] += 1
            yield taken[0]

    for grows, readings in ((True, 2), (False, 1)):
        watch = HostGuards(readers=[reader_of(numbers(), grows=grows)])
        before = taken[0]
        watch.begin()
        watch.end()
        assert taken[0] - before == readings


def test_nothing_is_read_after_the_end(folder: Path) -> None:
    with HostGuards(Machine(files=FileTree(folder))) as watch:
        pass
    watch.begin()
    assert watch.end()["swapped_pages"] is None


def test_states_of_all_guards_come_from_the_readings_of_a_launch() -> None:
    readings = [
        GuardReading(involuntary_switches=0, major_faults=0, probe_before_ns=5),
        GuardReading(involuntary_switches=1, steal_ns=0),
    ]
    states = guard_states(readings, {"swap": "", "temperature": "there is no sensor"})
    assert states.pop("run-queue wait").startswith("the worker has no")
    assert states == {
        "steal": "",
        "switches": "",
        "major faults": "",
        "frequency probe": "",
        "swap": "",
        "temperature": "there is no sensor",
    }


def test_a_probe_that_never_ran_is_reported_with_its_reason() -> None:
    states = guard_states([GuardReading(cpu_ns=3)], {})
    assert states["frequency probe"] == "the workload does not run on the CPU"
