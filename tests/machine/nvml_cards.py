"""Cards for tests: the recorded H200, and others written from published reports.

Not recorded: T4, GeForce, Pascal and MIG variations change single answers of the recording.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.machine.recorded_nvml import RecordedNvml, load
from torchyard.machine.gpu.library import GpuLibraries
from torchyard.machine.knob import Machine
from torchyard.machine.system.file_tree import FileTree

CARD = "gpu0"
PLACE = "gpu/GPU-00000000-0000-0000-0000-000000000001"


def h200(state: str = "idle", cards: int = 1) -> RecordedNvml:
    return RecordedNvml(load("h200"), state=state, cards=cards)


def t4(*, locks: bool = True) -> RecordedNvml:
    """A passively cooled card whose promised clock is far below its highest."""
    nvml = h200()
    nvml.answer("nvmlDeviceGetName", CARD, value="Tesla T4")
    nvml.answer("nvmlDeviceGetArchitecture", CARD, value=6)
    nvml.answer("nvmlDeviceGetPersistenceMode", CARD, value=0)
    for kind, now, highest, promised in ((0, 300, 1590, 585), (1, 300, 1590, 585)):
        nvml.answer("nvmlDeviceGetClockInfo", CARD, kind, value=now)
        nvml.answer("nvmlDeviceGetMaxClockInfo", CARD, kind, value=highest)
        nvml.answer("nvmlDeviceGetApplicationsClock", CARD, kind, value=promised)
        nvml.answer("nvmlDeviceGetDefaultApplicationsClock", CARD, kind, value=promised)
    nvml.answer("nvmlDeviceGetSupportedMemoryClocks", CARD, value=[5001, 405])
    nvml.answer(
        "nvmlDeviceGetSupportedGraphicsClocks", CARD, 5001, value=list(range(1590, 285, -15))
    )
    nvml.refuse("nvmlDeviceGetMigMode", CARD)
    if not locks:
        nvml.forget("nvmlDeviceSetGpuLockedClocks")
    return nvml


def geforce() -> RecordedNvml:
    """No ECC, no application clocks, no MIG; draws a screen."""
    nvml = h200()
    nvml.answer("nvmlDeviceGetName", CARD, value="NVIDIA GeForce RTX 3060")
    nvml.answer("nvmlDeviceGetArchitecture", CARD, value=7)
    for name in (
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetApplicationsClock",
        "nvmlDeviceGetDefaultApplicationsClock",
    ):
        nvml.refuse(name)
    return nvml


def pascal() -> RecordedNvml:
    """Older than clock locks; has application clocks, at their default."""
    nvml = h200()
    nvml.answer("nvmlDeviceGetName", CARD, value="Tesla P100-PCIE-16GB")
    nvml.answer("nvmlDeviceGetArchitecture", CARD, value=4)
    nvml.answer("nvmlDeviceGetMaxClockInfo", CARD, 1, value=1328)
    nvml.answer("nvmlDeviceGetMaxClockInfo", CARD, 2, value=715)
    for kind, clock in ((0, 1189), (1, 1189), (2, 715)):
        nvml.answer("nvmlDeviceGetApplicationsClock", CARD, kind, value=clock)
        nvml.answer("nvmlDeviceGetDefaultApplicationsClock", CARD, kind, value=clock)
    nvml.answer("nvmlDeviceGetSupportedMemoryClocks", CARD, value=[715])
    nvml.answer("nvmlDeviceGetSupportedGraphicsClocks", CARD, 715, value=[1328, 1189, 936, 544])
    return nvml


def add_process(nvml: RecordedNvml, pid: int, *, kind: str = "Compute", busy: int = 0) -> None:
    """One more process on the card; `busy` is what it used of the multiprocessors, in percent."""
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    processes: list[Any] = [*getattr(nvml, name)(CARD)]
    processes.append(SimpleNamespace(pid=pid, usedGpuMemory=2**30))
    nvml.answer(name, CARD, value=processes)
    sample = SimpleNamespace(pid=pid, timeStamp=1_794_731_168_920_070, smUtil=busy)
    nvml.answer("nvmlDeviceGetProcessUtilization", CARD, 0, value=[sample])


def machine_of(nvml: RecordedNvml, root: Path) -> Machine:
    return Machine(files=FileTree(root), gpus=GpuLibraries(nvml=nvml))
