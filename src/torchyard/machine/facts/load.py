"""How busy the machine is: load, pressure, steal. Averages that the kernel keeps, not a measurement."""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Fact
from torchyard.machine.facts.reading import Reader, facts_of, in_words, line_of
from torchyard.machine.file_tree import FileTree, Found
from torchyard.machine.knob import Machine

__all__ = [
    "SECTION",
    "STEAL",
    "load_averages",
    "pressure_share",
    "processor_times",
    "read",
]

SECTION: Final = "load"
STEAL: Final = 7
"""Place of stolen time in a line of /proc/stat: user nice system idle iowait irq softirq steal."""


def read(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(SECTION, READERS, machine.files)


def load_averages(files: FileTree) -> Found:
    """Processes that run or wait, averaged over 1, 5 and 15 minutes."""
    return in_words(line_of(files, "proc/loadavg"), lambda text: " ".join(text.split()[:3]))


def pressure_share(files: FileTree, resource: str) -> float | None:
    """Which part of the last ten seconds somebody waited for a resource."""
    try:
        return float(_pressure(files, resource)["avg10"]) / 100
    except (KeyError, ValueError):
        return None


def _pressure(files: FileTree, resource: str) -> dict[str, str]:
    """The first line, `some`: at least one process waited."""
    words = (line_of(files, f"proc/pressure/{resource}").value or "").split()
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def processor_times(files: FileTree) -> tuple[int, ...]:
    """Ticks of all processors since boot, as the first line of /proc/stat; empty when unreadable."""
    words = (line_of(files, "proc/stat").value or "").split()
    if not words or words[0] != "cpu" or not all(word.isdecimal() for word in words[1:]):
        return ()
    # The time of guests is counted in user and nice, too.
    return tuple(int(word) for word in words[1:9])


def _stolen(files: FileTree) -> Found:
    times = processor_times(files)
    if len(times) <= STEAL or not sum(times):
        return Found(because=files.read("proc/stat").because or "/proc/stat has no stolen time")
    return Found(value=f"{times[STEAL] / sum(times):.2%}")


def _waiting(resource: str) -> Reader:
    def read_share(files: FileTree) -> Found:
        share = pressure_share(files, resource)
        if share is not None:
            return Found(value=f"{share:.1%}")
        found = files.read(f"proc/pressure/{resource}")
        return Found(because=found.because or f"/proc/pressure/{resource} has no avg10")

    return read_share


def _running(files: FileTree) -> Found:
    for line in (files.read("proc/stat").value or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "procs_running" and value.strip().isdecimal():
            return Found(value=value.strip())
    return Found(because=files.read("proc/stat").because or "/proc/stat has no procs_running")


READERS: Final[dict[str, Reader]] = {
    "load averages": load_averages,
    "running now": _running,
    "waits for processors (10 s)": _waiting("cpu"),
    "waits for memory (10 s)": _waiting("memory"),
    "waits for disks (10 s)": _waiting("io"),
    "stolen by the host since boot": _stolen,
}
