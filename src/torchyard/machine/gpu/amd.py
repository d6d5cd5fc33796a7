"""What AMD's kernel driver says about every AMD GPU, at one moment: files, no library, no root.

`/sys/class/drm/cardN/device` for the card, its `hwmon` for sensors, `/sys/class/kfd` for the
chip's generation and the processes that compute. Which files there are differs between chips.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from torchyard.machine.file_tree import FileTree
from torchyard.machine.gpu.amd_clocks import clock_now, clock_states, graphics_limits
from torchyard.machine.gpu.amd_sensors import AmdSensors, first_number, text_of
from torchyard.machine.gpu.answer import Answer
from torchyard.machine.gpu.processes import GpuProcess, owner_of

__all__ = ["AmdGpu", "amd_cards", "card_at", "read_amd"]

_VENDOR: Final = "0x1002"
_KFD: Final = "sys/class/kfd/kfd"


@dataclass(frozen=True, kw_only=True)
class AmdGpu:
    """One GPU. Names end in their unit."""

    card: str
    """Its folder below /sys/class/drm."""
    address: str
    """On the PCI bus, which stays the same when cards are counted anew; else the card's name."""
    name: Answer[str]
    chip: Answer[str]
    """The compiler's name of the generation: gfx90a, gfx942, gfx1100."""
    vbios: Answer[str]
    performance_level: Answer[str]
    graphics_clock_mhz: Answer[int]
    max_graphics_clock_mhz: Answer[int]
    graphics_limits_mhz: Answer[tuple[int, int]]
    memory_clock_mhz: Answer[int]
    max_memory_clock_mhz: Answer[int]
    power_w: Answer[float]
    power_limit_w: Answer[float]
    default_power_limit_w: Answer[float]
    temperature_c: Answer[int]
    slowdown_temperature_c: Answer[int]
    busy_percent: Answer[int]
    link: Answer[str]
    max_link: Answer[str]
    processes: Answer[tuple[GpuProcess, ...]]


def amd_cards(files: FileTree) -> tuple[str, ...]:
    """Folders of AMD's cards, such as `sys/class/drm/card1`; connectors are no cards."""
    return tuple(
        path
        for path in files.paths("sys/class/drm/card*")
        if re.fullmatch(r"card\d+", path.rpartition("/")[2])
        and (files.read(f"{path}/device/vendor").value or "").strip() == _VENDOR
    )


def card_at(files: FileTree, address: str) -> str | None:
    """The folder of the card with this address."""
    return next((card for card in amd_cards(files) if _address(files, card) == address), None)


def read_amd(files: FileTree) -> tuple[AmdGpu, ...]:
    """Every card; cards without power management show little."""
    return tuple(_read_one(files, card) for card in amd_cards(files))


def _read_one(files: FileTree, card: str) -> AmdGpu:
    device = f"{card}/device"
    address = _address(files, card)
    node = _kfd_node(files, address)
    sensors = AmdSensors(files, card)
    graphics = clock_states(files, f"{device}/pp_dpm_sclk")
    memory = clock_states(files, f"{device}/pp_dpm_mclk")
    return AmdGpu(
        card=card.rpartition("/")[2],
        address=address,
        name=_name(files, device),
        chip=_chip(files, node),
        vbios=text_of(files, f"{device}/vbios_version"),
        performance_level=text_of(files, f"{device}/power_dpm_force_performance_level"),
        graphics_clock_mhz=clock_now(graphics),
        max_graphics_clock_mhz=graphics.map(lambda states: max(mhz for mhz, _ in states)),
        graphics_limits_mhz=graphics_limits(files, card),
        memory_clock_mhz=clock_now(memory),
        max_memory_clock_mhz=memory.map(lambda states: max(mhz for mhz, _ in states)),
        power_w=sensors.power_w(),
        power_limit_w=sensors.power_limit_w(),
        default_power_limit_w=sensors.default_power_limit_w(),
        temperature_c=sensors.temperature_c(),
        slowdown_temperature_c=sensors.slowdown_temperature_c(),
        busy_percent=first_number(files, f"{device}/gpu_busy_percent", unit=1).map(round),
        link=_link(files, device, "current"),
        max_link=_link(files, device, "max"),
        processes=_processes(files, node),
    )


def _address(files: FileTree, card: str) -> str:
    events = files.read(f"{card}/device/uevent").value or ""
    found = re.search(r"^PCI_SLOT_NAME=([0-9a-fA-F:.]+)$", events, re.MULTILINE)
    return found[1].lower() if found else card.rpartition("/")[2]


def _name(files: FileTree, device: str) -> Answer[str]:
    product = (files.read(f"{device}/product_name").value or "").strip()
    if product:
        return Answer(value=product)
    return text_of(files, f"{device}/device").map(lambda number: f"AMD device {number}")


def _kfd_node(files: FileTree, address: str) -> str | None:
    """The compute driver's folder of the card: it counts by bus, device and function."""
    found = re.fullmatch(r"([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)\.([0-7])", address)
    if not found:
        return None
    domain, bus, slot, function = (int(part, 16) for part in found.groups())
    wanted = {("domain", str(domain)), ("location_id", str(bus << 8 | slot << 3 | function))}
    for path in files.paths(f"{_KFD}/topology/nodes/*/properties"):
        lines = (files.read(path).value or "").splitlines()
        if wanted <= {(name, value) for name, _, value in (line.partition(" ") for line in lines)}:
            return path.rpartition("/")[0]
    return None


def _chip(files: FileTree, node: str | None) -> Answer[str]:
    if node is None:
        return Answer(because="the compute driver (/sys/class/kfd) does not list this card")
    text = files.read(f"{node}/properties").value or ""
    found = re.search(r"^gfx_target_version (\d+)$", text, re.MULTILINE)
    if not found or not int(found[1]):
        return Answer(because=f"/{node}/properties names no generation")
    number = int(found[1])
    return Answer(value=f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}")


def _link(files: FileTree, device: str, when: str) -> Answer[str]:
    speed = text_of(files, f"{device}/{when}_link_speed")
    width = text_of(files, f"{device}/{when}_link_width")
    if speed.value is None or width.value is None:
        return Answer(because=speed.because or width.because)
    return Answer(value=f"{speed.value} x{width.value}")


def _processes(files: FileTree, node: str | None) -> Answer[tuple[GpuProcess, ...]]:
    if node is None or not files.exists(f"{_KFD}/proc"):
        return Answer(because=f"/{_KFD}/proc does not list this card's processes")
    number = (files.read(f"{node}/gpu_id").value or "").strip()
    found: list[GpuProcess] = []
    for name in files.names(f"{_KFD}/proc"):
        used = files.read(f"{_KFD}/proc/{name}/vram_{number}").number
        if name.isdigit() and used:
            pid = int(name)
            found.append(
                GpuProcess(
                    pid=pid,
                    kind="compute",
                    memory_bytes=used,
                    name=(files.read(f"proc/{pid}/comm").value or "").strip(),
                    owner=owner_of(pid, files),
                )
            )
    return Answer(value=tuple(found))
