"""Read AMD GPUs from the files of AMD's kernel driver: state, clocks, sensors. No root.

`/sys/class/drm/cardN/device` for the card, its `hwmon` for sensors, `/sys/class/kfd` for the chip's
generation and the processes that compute. Which files exist differs between chips. Formats of the
clock files (`pp_dpm_*`, `pp_od_clk_voltage`) are those of the kernel's `aldebaran_ppt.c` (MI200),
`smu_v13_0_6_ppt.c` (MI300) and the drivers of RDNA chips. `AmdSensors` is cheap enough for every
block: it looks for its files once.

`AmdSmi` reads what these files do not contain, throttling and energy, with the optional Python package
`amdsmi` of ROCm. Field names are those of its releases 6 and 7; never run on a card.
"""

from __future__ import annotations

import importlib
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from torchyard.machine.gpu.library import GpuProcess, owner_of, process_list, shown_as
from torchyard.machine.system.file_tree import Answer, FileTree

_POWER, _CURRENT, _THERMAL = "power cap", "current limit", "hardware thermal"
_SLOWDOWN: Final = "hardware slowdown"
_BITS: Final = {
    **dict.fromkeys(range(8), _POWER),
    **dict.fromkeys(range(16, 24), _CURRENT),
    **dict.fromkeys(range(32, 46), _THERMAL),
    **dict.fromkeys((46, 47), _SLOWDOWN),
    56: _POWER,
}
"""Bits of `indep_throttle_status`, as in the kernel's amdgpu_smu.h, in the words used for NVIDIA."""
_RESIDENCIES: Final = {
    "prochot_residency_acc": _SLOWDOWN,
    "ppt_residency_acc": _POWER,
    "socket_thm_residency_acc": _THERMAL,
    "vr_thm_residency_acc": _THERMAL,
    "hbm_thm_residency_acc": _THERMAL,
}
"""Counters of MI300 that grow while the clock is held; such cards have no status bits."""
_INSTALL: Final = "the Python package amdsmi of ROCm is not installed"


class AmdSmi:
    """One card, through the initialized module `amdsmi`."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._residencies: dict[str, int] = {}

    def throttle_reasons(self) -> Answer[tuple[str, ...]]:
        """Return what lowers the clock now, or has since the last call on cards that count it."""
        try:
            metrics = self._library.amdsmi_get_gpu_metrics_info(self._handle)
        except Exception as error:  # noqa: BLE001 - the library raises its own family of errors
            return Answer(because=f"AMD SMI reports {str(error).strip() or type(error).__name__}")
        counters = {
            name: value for name in _RESIDENCIES if isinstance(value := metrics.get(name), int)
        }
        bits = metrics.get("indep_throttle_status")
        before, self._residencies = self._residencies, counters
        if counters:
            grown = (name for name, value in counters.items() if value > before.get(name, value))
            return Answer(value=tuple(dict.fromkeys(_RESIDENCIES[name] for name in grown)))
        if not isinstance(bits, int):
            return Answer(because="AMD SMI has no throttle status of this card")
        reasons = (reason for bit, reason in _BITS.items() if bits >> bit & 1)
        return Answer(value=tuple(dict.fromkeys(reasons)))

    def energy_j(self) -> Answer[float]:
        """Return the energy counter; it is called `power` in older releases."""
        try:
            count = self._library.amdsmi_get_energy_count(self._handle)
            ticks = count.get("energy_accumulator", count.get("power"))
            return Answer(value=float(ticks) * float(count["counter_resolution"]) / 1e6)
        except Exception as error:  # noqa: BLE001 - its own errors, and "N/A"
            return Answer(because=f"AMD SMI has no energy counter of this card: {error}")

    def close(self) -> None:
        """Shut the library down."""
        with suppress(Exception):  # a driver that was unloaded needs no shutdown
            self._library.amdsmi_shut_down()


def open_amd_smi(address: str) -> Answer[AmdSmi]:
    """Return the card at this PCI address, or why AMD SMI cannot read it; never raises."""
    try:
        library = importlib.import_module("amdsmi")
        library.amdsmi_init()
    except ImportError:
        return Answer(because=_INSTALL)
    except Exception as error:  # noqa: BLE001 - KeyError without the library of ROCm, or its own errors
        return Answer(because=f"AMD SMI cannot be initialized: {error}")
    with suppress(Exception):
        for handle in library.amdsmi_get_processor_handles():
            if str(library.amdsmi_get_gpu_device_bdf(handle)).lower() == address:
                return Answer(value=AmdSmi(library, handle))
    with suppress(Exception):
        library.amdsmi_shut_down()
    return Answer(because=f"AMD SMI does not list the card at {address}")


_STATE: Final = re.compile(r"^\s*(?:\d+|S):\s*(\d+)\s*mhz\b.*?(\*?)\s*$", re.IGNORECASE)
"""`1: 1700Mhz *`; S is deep sleep; the asterisk marks the present state."""
_GRAPHICS_HEADINGS: Final = ("GFXCLK:", "OD_SCLK:")
"""MI200 uses the first, MI300 and RDNA the second."""


def clock_states(files: FileTree, path: str) -> Answer[tuple[tuple[int, bool], ...]]:
    """Return (MHz, whether it is the present state) of every state, as listed."""
    reading = files.read(path)
    if reading.value is None:
        return Answer(because=reading.because)
    states = tuple(
        (int(state[1]), state[2] == "*")
        for state in map(_STATE.match, reading.value.splitlines())
        if state
    )
    return Answer(value=states) if states else Answer(because=f"/{path} lists no clocks")


def clock_now(states: Answer[tuple[tuple[int, bool], ...]]) -> Answer[int]:
    """Return the present clock."""
    if states.value is None:
        return Answer(because=states.because)
    present = [mhz for mhz, now in states.value if now]
    return Answer(value=present[0]) if present else Answer(because="no clock is marked as present")


def graphics_limits(files: FileTree, card: str) -> Answer[tuple[int, int]]:
    """Return the lowest and highest allowed graphics clock.

    First and last line of the block: MI200 puts the present clock between them while it lies
    between, so the line called 1 is not always the upper limit.
    """
    path = f"{card}/device/pp_od_clk_voltage"
    reading = files.read(path)
    if reading.value is None:
        return Answer(because=reading.because)
    clocks: list[int] = []
    inside = False
    for line in reading.value.splitlines():
        state = _STATE.match(line)
        if inside and state:
            clocks.append(int(state[1]))
        else:
            inside = line.strip() in _GRAPHICS_HEADINGS
    if not clocks:
        return Answer(because=f"/{path} has no graphics clock limits")
    return Answer(value=(clocks[0], clocks[-1]))


_HOTTEST_FIRST: Final = ("junction", "edge")
"""Sensors by label: the hot spot is what throttles; some chips have only the edge sensor."""


class AmdSensors:
    """Sensors of one card, by its folder such as `sys/class/drm/card1`."""

    def __init__(self, files: FileTree, card: str) -> None:
        self._files = files
        self._device = f"{card}/device"
        folders = files.paths(f"{self._device}/hwmon/hwmon*")
        self._folder = folders[0] if folders else f"{self._device}/hwmon/hwmon0"
        labels = {
            files.read(path).text.strip(): path.removesuffix("_label")
            for path in files.paths(f"{self._folder}/temp*_label")
        }
        self._hottest = next(
            (labels[name] for name in _HOTTEST_FIRST if name in labels), f"{self._folder}/temp1"
        )

    def graphics_clock_mhz(self) -> Answer[int]:
        """Return the present graphics clock."""
        return clock_now(clock_states(self._files, f"{self._device}/pp_dpm_sclk"))

    def power_w(self) -> Answer[float]:
        """Return the power: instantaneous on newer chips, an average on older ones."""
        return self.watts("power1_average", "power1_input")

    def temperature_c(self, name: str = "input") -> Answer[int]:
        """Return the temperature of the hot spot; `crit`: the one at which the card throttles."""
        return first_number(self._files, f"{self._hottest}_{name}", unit=1000).map(round)

    def watts(self, *names: str) -> Answer[float]:
        """Return the first of these sensors that the card has."""
        paths = [f"{self._folder}/{name}" for name in names]
        return first_number(self._files, *paths, unit=1_000_000)


def text_of(files: FileTree, path: str) -> Answer[str]:
    """Read a file; an empty one is unavailable."""
    reading = files.read(path)
    if not (reading.value or "").strip():
        return Answer(because=reading.because or f"/{path} is empty")
    return Answer(value=(reading.value or "").strip())


def first_number(files: FileTree, *paths: str, unit: int) -> Answer[float]:
    """Return the number of the first file that contains one, divided by `unit`."""
    because = ""
    for path in paths:
        reading = files.read(path)
        number = reading.number
        if number is not None:
            return Answer(value=number / unit)
        because = because or reading.because or f"/{path} contains no number"
    return Answer(because=because)


_VENDOR: Final = "0x1002"
_KFD: Final = "sys/class/kfd/kfd"


@dataclass(frozen=True, kw_only=True)
class AmdGpu:
    """State of one GPU. Field names end in their unit."""

    card: str
    """Its folder below /sys/class/drm."""
    address: str
    """PCI address, which is stable when cards are renumbered; else the card's name."""
    name: Answer[str] = shown_as("name")
    location: Answer[str] = shown_as("location")
    chip: Answer[str] = shown_as("chip")
    """LLVM target name: gfx90a, gfx942, gfx1100."""
    vbios: Answer[str] = shown_as("VBIOS")
    performance_level: Answer[str] = shown_as("performance level")
    graphics_clock_mhz: Answer[int] = shown_as("graphics clock", "{} MHz")
    max_graphics_clock_mhz: Answer[int] = shown_as("maximum graphics clock", "{} MHz")
    graphics_limits_mhz: Answer[tuple[int, int]] = shown_as(
        "graphics clock limits", "{0[0]} to {0[1]} MHz"
    )
    memory_clock_mhz: Answer[int] = shown_as("memory clock", "{} MHz")
    max_memory_clock_mhz: Answer[int] = shown_as("maximum memory clock", "{} MHz")
    power_w: Answer[float] = shown_as("power", "{:.0f} W")
    power_limit_w: Answer[float] = shown_as("power limit", "{:.0f} W")
    default_power_limit_w: Answer[float] = shown_as("default power limit", "{:.0f} W")
    temperature_c: Answer[int] = shown_as("temperature", "{} °C")
    slowdown_temperature_c: Answer[int] = shown_as("slowdown temperature", "{} °C")
    link: Answer[str] = shown_as("PCIe link")
    max_link: Answer[str] = shown_as("maximum PCIe link")
    busy_percent: Answer[int] = shown_as("utilization", "{} %")
    processes: Answer[tuple[GpuProcess, ...]] = shown_as("processes", process_list)


def amd_cards(files: FileTree) -> tuple[str, ...]:
    """Return the folders of AMD cards, such as `sys/class/drm/card1`, without connectors."""
    return tuple(
        path
        for path in files.paths("sys/class/drm/card*")
        if re.fullmatch(r"card\d+", path.rpartition("/")[2])
        and files.read(f"{path}/device/vendor").text.strip() == _VENDOR
    )


def address_of(files: FileTree, card: str) -> str:
    """Return the PCI address of a card; without one, its name."""
    events = files.read(f"{card}/device/uevent").text
    match = re.search(r"^PCI_SLOT_NAME=([0-9a-fA-F:.]+)$", events, re.MULTILINE)
    return match[1].lower() if match else card.rpartition("/")[2]


def count_others(files: FileTree, card: str) -> int | None:
    """Count other processes that compute on the card; one that only holds memory does not disturb.

    Older kernels do not report which ones compute; then all count.
    """
    node = _kfd_node(files, address_of(files, card))
    processes = _processes(files, node).value
    if processes is None or any(one.owner == "unknown" for one in processes):
        return None
    number = files.read(f"{node}/gpu_id").text.strip()
    others = [one.pid for one in processes if one.owner == "other"]
    units = [files.read(f"{_KFD}/proc/{pid}/stats_{number}/cu_occupancy").number for pid in others]
    return sum(1 for busy in units if busy is None or busy > 0)


def card_at(files: FileTree, address: str) -> str | None:
    """Return the folder of the card with this address."""
    return next((card for card in amd_cards(files) if address_of(files, card) == address), None)


def read_amd(files: FileTree) -> tuple[AmdGpu, ...]:
    """Read every card; cards without power management have few values."""
    return tuple(_read_one(files, card) for card in amd_cards(files))


def _read_one(files: FileTree, card: str) -> AmdGpu:
    device = f"{card}/device"
    address = address_of(files, card)
    node = _kfd_node(files, address)
    sensors = AmdSensors(files, card)
    graphics = clock_states(files, f"{device}/pp_dpm_sclk")
    memory = clock_states(files, f"{device}/pp_dpm_mclk")
    return AmdGpu(
        card=card.rpartition("/")[2],
        address=address,
        name=_name(files, device),
        location=Answer(value=f"{card.rpartition('/')[2]} at {address}"),
        chip=_chip(files, node),
        vbios=text_of(files, f"{device}/vbios_version"),
        performance_level=text_of(files, f"{device}/power_dpm_force_performance_level"),
        graphics_clock_mhz=clock_now(graphics),
        max_graphics_clock_mhz=graphics.map(lambda states: max(mhz for mhz, _ in states)),
        graphics_limits_mhz=graphics_limits(files, card),
        memory_clock_mhz=clock_now(memory),
        max_memory_clock_mhz=memory.map(lambda states: max(mhz for mhz, _ in states)),
        power_w=sensors.power_w(),
        power_limit_w=sensors.watts("power1_cap"),
        default_power_limit_w=sensors.watts("power1_cap_default"),
        temperature_c=sensors.temperature_c(),
        slowdown_temperature_c=sensors.temperature_c("crit"),
        busy_percent=first_number(files, f"{device}/gpu_busy_percent", unit=1).map(round),
        link=_link(files, device, "current"),
        max_link=_link(files, device, "max"),
        processes=_processes(files, node),
    )


def _name(files: FileTree, device: str) -> Answer[str]:
    product = files.read(f"{device}/product_name").text.strip()
    if product:
        return Answer(value=product)
    return text_of(files, f"{device}/device").map(lambda number: f"AMD device {number}")


def _kfd_node(files: FileTree, address: str) -> str | None:
    """Return the compute driver's folder of the card, matched by bus, device and function."""
    match = re.fullmatch(r"([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)\.([0-7])", address)
    if not match:
        return None
    domain, bus, slot, function = (int(part, 16) for part in match.groups())
    location = {("domain", str(domain)), ("location_id", str(bus << 8 | slot << 3 | function))}
    for path in files.paths(f"{_KFD}/topology/nodes/*/properties"):
        lines = files.read(path).text.splitlines()
        if location <= {
            (name, value) for name, _, value in (line.partition(" ") for line in lines)
        }:
            return path.rpartition("/")[0]
    return None


def _chip(files: FileTree, node: str | None) -> Answer[str]:
    if node is None:
        return Answer(because="the compute driver (/sys/class/kfd) does not list this card")
    text = files.read(f"{node}/properties").text
    match = re.search(r"^gfx_target_version (\d+)$", text, re.MULTILINE)
    if not match or not int(match[1]):
        return Answer(because=f"/{node}/properties has no gfx_target_version")
    number = int(match[1])
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
    number = files.read(f"{node}/gpu_id").text.strip()
    processes: list[GpuProcess] = []
    for name in files.names(f"{_KFD}/proc"):
        used = files.read(f"{_KFD}/proc/{name}/vram_{number}").number
        if name.isdigit() and used:
            pid = int(name)
            processes.append(
                GpuProcess(
                    pid=pid,
                    kind="compute",
                    memory_bytes=used,
                    name=files.read(f"proc/{pid}/comm").text.strip(),
                    owner=owner_of(pid, files),
                )
            )
    return Answer(value=tuple(processes))
