"""AMD cards for tests: the files of their driver, and a fake driver that reacts to writes.

Formats and manners as in the kernel's aldebaran_ppt.c (MI200), smu_v13_0_6_ppt.c (MI300X) and
amdgpu_pm.c; RDNA as its owners show it. `AmdDriver` stands at the kernel's border only.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from torchyard.machine.system.file_tree import FileTree, WriteRefused

ADDRESS = "0000:83:00.0"
DEVICE = f"sys/devices/pci0000:80/{ADDRESS}"
GPU_ID = "41023"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What differs between chips."""

    name: str
    device: str
    target: int
    heading: str
    clocks_mhz: tuple[int, int]
    levels: tuple[str, ...]
    sensors: dict[str, str]
    """Below the card's hwmon folder."""
    takes_determinism: bool = True


KINDS = {
    "mi200": Kind(
        name="AMD INSTINCT MI210",
        device="0x740f",
        target=90010,
        heading="GFXCLK",
        clocks_mhz=(500, 1700),
        levels=("auto", "low", "high", "manual", "perf_determinism"),
        sensors={
            "power1_average": "41000000",
            "power1_cap": "300000000",
            "power1_cap_default": "300000000",
            "temp1_label": "edge",
            "temp1_input": "34000",
            "temp2_label": "junction",
            "temp2_input": "38000",
            "temp2_crit": "105000",
        },
    ),
    "mi300x": Kind(
        name="AMD Instinct MI300X OAM",
        device="0x74a1",
        target=90402,
        heading="OD_SCLK",
        clocks_mhz=(500, 2100),
        levels=("auto", "manual", "perf_determinism"),
        sensors={
            "power1_input": "139000000",
            "power1_cap": "750000000",
            "power1_cap_default": "750000000",
            "temp2_label": "junction",
            "temp2_input": "41000",
            "temp2_crit": "100000",
            "temp3_label": "mem",
            "temp3_input": "35000",
        },
    ),
    "mi308x": Kind(
        name="AMD Instinct MI308X",
        device="0x74a2",
        target=90402,
        heading="OD_SCLK",
        clocks_mhz=(500, 1420),
        levels=("auto", "manual", "perf_determinism"),
        sensors={},
        takes_determinism=False,
    ),
    "rdna3": Kind(
        name="",
        device="0x744c",
        target=110000,
        heading="OD_SCLK",
        clocks_mhz=(500, 2526),
        levels=("auto", "low", "high", "manual", "profile_standard"),
        sensors={"power1_average": "23000000", "temp1_label": "edge", "temp1_input": "47000"},
    ),
}


def make_card(kind: str, root: Path) -> Path:
    """One card, and a connector and an Intel card beside it."""
    chip = KINDS[kind]
    lowest, highest = chip.clocks_mhz
    files = {
        "vendor": "0x1002",
        "device": chip.device,
        "uevent": f"DRIVER=amdgpu\nPCI_ID=1002:{chip.device[2:]}\nPCI_SLOT_NAME={ADDRESS}",
        "vbios_version": "113-D67301-063",
        "power_dpm_force_performance_level": "auto",
        "pp_dpm_sclk": f"0: {lowest}Mhz \n1: 800Mhz *\n2: {highest}Mhz ",
        "pp_dpm_mclk": "0: 400Mhz \n1: 1600Mhz *",
        "pp_od_clk_voltage": _table(chip, lowest, highest),
        "gpu_busy_percent": "3",
        "current_link_speed": "16.0 GT/s PCIe",
        "current_link_width": "16",
        "max_link_speed": "16.0 GT/s PCIe",
        "max_link_width": "16",
    }
    if chip.name:
        files["product_name"] = chip.name
    files |= {f"hwmon/hwmon5/{name}": text for name, text in chip.sensors.items()}
    for name, text in files.items():
        _write(root / DEVICE / name, text)
    drm = root / DEVICE / "drm" / "card1"
    drm.mkdir(parents=True)
    (drm / "device").symlink_to("../..")
    _write(root / "sys/class/drm/card0/device/vendor", "0x8086")
    _write(root / "sys/class/drm/card1-DP-1/status", "disconnected")
    (root / "sys/class/drm/card1").symlink_to(f"../../../{DEVICE}/drm/card1")
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    _write(nodes / "0/properties", "cpu_cores_count 64\ngfx_target_version 0\nlocation_id 0")
    location = 0x83 << 8
    _write(
        nodes / "1/properties",
        f"simd_count 416\ngfx_target_version {chip.target}\nlocation_id {location}\ndomain 0",
    )
    _write(nodes / "1/gpu_id", GPU_ID)
    (root / "sys/class/kfd/kfd/proc").mkdir(parents=True)
    return root


class AmdDriver(FileTree):
    """The card's files with the manners of its driver."""

    def __init__(self, kind: str, root: Path) -> None:
        super().__init__(make_card(kind, root))
        self.kind = KINDS[kind]
        self.limits = self.kind.clocks_mhz
        self.asked: dict[int, int] = {}
        self.accepted: list[tuple[str, str]] = []
        self.read_only = False

    @property
    def level(self) -> str:
        return (self.root / DEVICE / "power_dpm_force_performance_level").read_text().strip()

    def write(self, path: str, value: str) -> None:
        try:
            if self.read_only:
                raise _refusal(errno.EPERM)
            name = path.rpartition("/")[2]
            if name == "power_dpm_force_performance_level":
                self._set_level(value)
            elif name == "pp_od_clk_voltage":
                self._edit(value)
            else:
                raise _refusal(errno.EACCES)
        except OSError as error:
            raise WriteRefused(path, value, error) from error
        self.accepted.append((path.rpartition("/")[2], value))

    def add_process(self, pid: int, size_bytes: int) -> None:
        _write(self.root / f"sys/class/kfd/kfd/proc/{pid}/vram_{GPU_ID}", str(size_bytes))

    def present_clock_between(self) -> None:
        """As an MI200 shows its limits while the clock lies between them: as a line of its own."""
        lowest, highest = self.limits
        text = f"{self.kind.heading}:\n0: {lowest}Mhz \n1: 1234Mhz *\n2: {highest}Mhz \nMCLK:\n0: 400Mhz "
        _write(self.root / DEVICE / "pp_od_clk_voltage", text)

    def _set_level(self, level: str) -> None:
        if level not in self.kind.levels:
            raise _refusal(errno.EINVAL)
        if level != self.level and (level == "auto" or self.level == "perf_determinism"):
            self.limits = self.kind.clocks_mhz
        _write(self.root / DEVICE / "power_dpm_force_performance_level", level)
        self._show()

    def _edit(self, order: str) -> None:
        if self.level not in ("manual", "perf_determinism"):
            raise _refusal(errno.EINVAL)
        lowest, highest = self.kind.clocks_mhz
        words = order.split()
        if words[0] == "s" and len(words) == 3:
            clock = int(words[2])
            if not lowest <= clock <= highest:
                raise _refusal(errno.EINVAL)
            self.asked[int(words[1])] = clock
        elif words == ["c"]:
            if self.level == "perf_determinism":
                if not self.kind.takes_determinism:
                    raise _refusal(errno.EOPNOTSUPP)
                self.limits = (lowest, self.asked.get(1, self.limits[1]))
            else:
                self.limits = (
                    self.asked.get(0, self.limits[0]),
                    self.asked.get(1, self.limits[1]),
                )
            self.asked.clear()
            self._show()
        else:
            raise _refusal(errno.EINVAL)

    def _show(self) -> None:
        _write(self.root / DEVICE / "pp_od_clk_voltage", _table(self.kind, *self.limits))


def _table(kind: Kind, lowest: int, highest: int) -> str:
    memory = "MCLK" if kind.heading == "GFXCLK" else "OD_MCLK"
    return (
        f"{kind.heading}:\n0: {lowest}Mhz *\n1: {highest}Mhz \n{memory}:\n0: 400Mhz \n1: 1600Mhz *"
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def _refusal(code: int) -> OSError:
    return OSError(code, os.strerror(code))
