"""Facts from NVML: the recorded card, and cards with fewer features."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.machine.nvml_cards import CARD, add_process, geforce, h200, machine_of, t4
from torchyard.machine.facts import gpu_facts, read_gpus
from torchyard.machine.gpu.library import GpuLibraries, owner_of
from torchyard.machine.gpu.nvidia import reasons_of
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact

GOLDEN_IDLE = """\
name: NVIDIA H200
UUID: GPU-00000000-0000-0000-0000-000000000001
driver: 580.159.04
CUDA version of the driver: 13.0
VBIOS: 96.00.A5.00.1A
performance state: P0
graphics clock: 345 MHz
maximum graphics clock: 1980 MHz
application clock: 1980 MHz
default application clock: 1980 MHz
graphics clock lock: unavailable, because NVML can set a clock lock but not read it; see the event reasons
supported graphics clocks: 110 from 345 to 1980 MHz
memory clock: 3201 MHz
maximum memory clock: 3201 MHz
supported memory clocks: 2 from 2201 to 3201 MHz
clock event reasons: idle
power: 78 W
power limit: 700 W
default power limit: 700 W
temperature: 37 °C
slowdown temperature: 89 °C
persistence mode: on
compute mode: default
ECC: on
ECC after the next reset: on
MIG: off
PCIe link: generation 5 x16
maximum PCIe link: generation 5 x16
utilization: 0 %
memory used: 0.6 GiB
memory: 140.4 GiB
processes: none
"""


def facts_of(machine: Machine, section: str = "gpu 0") -> dict[str, Fact]:
    return {fact.name: fact for fact in gpu_facts(read_gpus(machine)) if fact.section == section}


def make_process(root: Path, pid: int, parent: int, name: str = "python3") -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    fields = f"S {parent} 1 1 0 -1 " + "0 " * 44  # as many as the kernel writes
    (folder / "stat").write_text(f"{pid} ({name}) {fields}\n")
    (folder / "comm").write_text(f"{name}\n")


def test_every_fact_of_the_recorded_card(tmp_path: Path) -> None:
    facts = facts_of(machine_of(h200(), tmp_path)).values()
    assert "".join(f"{fact.name}: {fact.text}\n" for fact in facts) == GOLDEN_IDLE


def test_the_same_card_at_work(tmp_path: Path) -> None:
    facts = facts_of(machine_of(h200("busy"), tmp_path))
    assert facts["graphics clock"].value == "1455 MHz"
    assert facts["clock event reasons"].value == "power cap"
    assert facts["power"].value == "689 W"
    assert facts["utilization"].value == "100 %"
    assert facts["processes"].value == "1001 (compute, 0.9 GiB, not visible from here)"


def test_each_card_has_a_section(tmp_path: Path) -> None:
    machine = machine_of(h200(cards=2), tmp_path)
    assert {fact.section for fact in gpu_facts(read_gpus(machine))} == {"gpu 0", "gpu 1"}
    assert facts_of(machine, "gpu 1")["UUID"].value != facts_of(machine)["UUID"].value


def test_what_a_card_does_not_support_has_a_reason(tmp_path: Path) -> None:
    facts = facts_of(machine_of(geforce(), tmp_path))
    for name in ("ECC", "ECC after the next reset", "MIG", "application clock"):
        assert facts[name].text == "unavailable, because NVML reports Not Supported"
    assert facts["graphics clock"].value == "345 MHz"


def test_a_lost_card_keeps_its_index(tmp_path: Path) -> None:
    nvml = h200(cards=2)
    nvml.refuse("nvmlDeviceGetHandleByIndex", 0, code=15)
    machine = machine_of(nvml, tmp_path)
    lost = facts_of(machine)
    assert lost["name"].text == "unavailable, because NVML reports GPU is lost"
    assert lost["processes"].unavailable == "NVML reports GPU is lost"
    assert facts_of(machine, "gpu 1")["name"].value == "NVIDIA H200"


def test_old_drivers_and_packages_are_asked_in_their_own_words(tmp_path: Path) -> None:
    nvml = t4()
    nvml.forget("nvmlDeviceGetCurrentClocksEventReasons")
    nvml.forget("nvmlDeviceGetTemperatureV")
    nvml.refuse("nvmlSystemGetCudaDriverVersion_v2", code=13)
    nvml.answer("nvmlDeviceGetName", CARD, value=b"Tesla T4")
    facts = facts_of(machine_of(nvml, tmp_path))
    assert facts["clock event reasons"].value == "idle"
    assert facts["temperature"].value == "37 °C"
    assert facts["CUDA version of the driver"].value == "13.0"
    assert facts["name"].value == "Tesla T4"


def test_no_library_is_one_fact_with_the_reason(tmp_path: Path) -> None:
    machine = Machine(gpus=GpuLibraries(nvml_because="no NVIDIA driver is loaded"))
    machine = Machine(files=machine_of(h200(), tmp_path).files, gpus=machine.gpus)
    (fact,) = gpu_facts(read_gpus(machine))
    assert fact.text == "unavailable, because no NVIDIA driver is loaded"
    (fact,) = gpu_facts(read_gpus(Machine(files=machine.files)))
    assert "NVML is not used" in fact.unavailable


def test_a_driver_without_cards(tmp_path: Path) -> None:
    nvml = h200()
    nvml.answer("nvmlDeviceGetCount", value=0)
    (fact,) = gpu_facts(read_gpus(machine_of(nvml, tmp_path)))
    assert fact.unavailable == "the driver lists no GPU"


def test_a_driver_that_counts_nothing(tmp_path: Path) -> None:
    nvml = h200()
    nvml.refuse("nvmlDeviceGetCount", code=1)
    view = read_gpus(machine_of(nvml, tmp_path))
    assert view.nvidia == ()
    assert view.nvidia_because


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0, ()),
        (0x1, ("idle",)),
        (0x2, ("clocks set by a user",)),
        (0x4 | 0x40, ("power cap", "hardware thermal")),
        (0x8 | 0x80, ("hardware slowdown", "power brake")),
        (0x110, ("sync boost", "display clock")),
        (0x21000, ("0x21000",)),
        (0x4 | 0x1000, ("power cap", "0x1000")),
    ],
)
def test_reasons_by_name(bits: int, names: tuple[str, ...]) -> None:
    assert reasons_of(bits) == names


class TestProcesses:
    """Whose they are."""

    def test_own_children_are_ours(self, tmp_path: Path) -> None:
        make_process(tmp_path, 50, os.getpid())
        make_process(tmp_path, 51, 50)
        files = machine_of(h200(), tmp_path).files
        assert owner_of(os.getpid(), files) == "ours"
        assert owner_of(51, files) == "ours"

    def test_other_processes_are_not_ours(self, tmp_path: Path) -> None:
        make_process(tmp_path, 60, 1)
        make_process(tmp_path, 1, 0)
        assert owner_of(60, machine_of(h200(), tmp_path).files) == "other"

    def test_a_name_may_hold_brackets_and_numbers(self, tmp_path: Path) -> None:
        make_process(tmp_path, 61, 1, name=f"x) S {os.getpid()} (")
        assert owner_of(61, machine_of(h200(), tmp_path).files) == "other"

    def test_a_parent_that_is_gone(self, tmp_path: Path) -> None:
        make_process(tmp_path, 62, 99)
        assert owner_of(62, machine_of(h200(), tmp_path).files) == "other"

    def test_parents_that_go_in_circles(self, tmp_path: Path) -> None:
        make_process(tmp_path, 70, 71)
        make_process(tmp_path, 71, 70)
        assert owner_of(70, machine_of(h200(), tmp_path).files) == "other"

    def test_one_that_is_not_visible_is_unknown(self, tmp_path: Path) -> None:
        assert owner_of(80, machine_of(h200(), tmp_path).files) == "unknown"

    def test_each_process_is_listed_once(self, tmp_path: Path) -> None:
        # GIVEN one process that computes and draws, and one that only draws
        nvml = h200()
        add_process(nvml, 60)
        add_process(nvml, 60, kind="Graphics")
        add_process(nvml, 90, kind="Graphics")
        make_process(tmp_path, 60, 1, "jupyter")
        make_process(tmp_path, 90, 1, "Xorg")
        facts = facts_of(machine_of(nvml, tmp_path))
        assert facts["processes"].value == (
            "60 jupyter (compute, 1.0 GiB), 90 Xorg (graphics, 1.0 GiB)"
        )

    def test_unknown_memory(self, tmp_path: Path) -> None:
        nvml = h200()
        add_process(nvml, 60)
        nvml.nvmlDeviceGetComputeRunningProcesses(CARD)[0].usedGpuMemory = None
        make_process(tmp_path, 60, 1, "a")
        assert facts_of(machine_of(nvml, tmp_path))["processes"].value == "60 a (compute)"

    def test_a_list_that_cannot_be_read(self, tmp_path: Path) -> None:
        nvml = h200()
        nvml.refuse("nvmlDeviceGetComputeRunningProcesses", CARD, code=4)
        fact = facts_of(machine_of(nvml, tmp_path))["processes"]
        assert fact.unavailable == "NVML reports Insufficient Permissions"
