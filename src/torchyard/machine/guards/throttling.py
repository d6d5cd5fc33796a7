"""How often the processor slowed itself down because of heat: counters of Intel's processors.

Every logical processor has both counters. The package's is read once for each package and the
core's once for each core.
"""

from __future__ import annotations

from typing import Final

from torchyard.machine.file_tree import FileTree
from torchyard.machine.guards.reader import Reader, total_of
from torchyard.machine.knob import Machine

__all__ = ["open_reader"]

MOST_CORES: Final = 64
"""With more cores only packages are counted: each file costs about 2 us, before and after a block,
and a core that gets too hot on such a machine is one of many."""

_CPUS: Final = "sys/devices/system/cpu"
_MISSING: Final = (
    f"/{_CPUS}/cpu*/thermal_throttle is missing: only Intel's processors have it, and virtual"
    " machines hide it"
)


def open_reader(machine: Machine) -> Reader:
    """Events since the machine started, of all packages and cores together."""
    paths = _counters(machine.files)
    because = "" if paths else _MISSING
    files = tuple(machine.files.hold(path) for path in paths)
    for file in files:
        because = because or file.because
    return Reader(
        name="throttle counters",
        reading="throttle_events",
        grows=True,
        unavailable=because,
        files=files,
        parse=total_of,
    )


def _counters(files: FileTree) -> list[str]:
    packages: dict[str, str] = {}
    cores: dict[str, str] = {}
    for folder in files.paths(f"{_CPUS}/cpu[0-9]*/thermal_throttle"):
        topology = f"{folder.rpartition('/')[0]}/topology"
        package = files.read(f"{topology}/physical_package_id").value or ""
        siblings = files.read(f"{topology}/thread_siblings_list").value or folder
        for found, key, name in (
            (packages, package, "package_throttle_count"),
            (cores, siblings, "core_throttle_count"),
        ):
            path = f"{folder}/{name}"
            if key not in found and files.exists(path):
                found[key] = path
    return [*packages.values(), *(cores.values() if len(cores) <= MOST_CORES else ())]
