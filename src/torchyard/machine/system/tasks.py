"""List tasks (processes and their threads) and their CPU affinity from /proc. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from torchyard.machine.system.file_tree import FileTree

_KERNEL_THREAD: Final = 0x00200000
_BOUND: Final = 0x04000000
"""PF_KTHREAD and PF_NO_SETAFFINITY of include/linux/sched.h."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One thread, of a process or of the kernel."""

    number: int
    name: str
    state: str
    parent: int
    start_ticks: int
    """Identifies a task together with its number, because numbers are reused."""
    of_kernel: bool
    bound: bool
    """Whether the kernel forbids changing its affinity."""
    nice: int
    cpu_ticks: int
    """CPU time in user and kernel mode."""
    processor: int
    """CPU on which it ran last; -1 if unknown."""


def tasks_of(files: FileTree, process: str) -> Iterator[int]:
    """Yield the thread IDs of a process, or of all processes with `*`."""
    processes = [name for name in files.names("proc") if name.isdigit()]
    for pid in processes if process == "*" else [process]:
        threads = [name for name in files.names(f"proc/{pid}/task") if name.isdigit()]
        yield from map(int, threads or [pid])


def read_task(files: FileTree, number: int | str) -> Task | None:
    """Read a task from its `stat` file; None if it is gone."""
    text = files.read(f"proc/{number}/stat").text
    # The name may contain blanks and parentheses: the fields follow the last one.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    try:
        flags = int(fields[6])
        return Task(
            number=int(head.split(maxsplit=1)[0]),
            name=head.partition("(")[2],
            state=fields[0],
            parent=int(fields[1]),
            start_ticks=int(fields[19]),
            of_kernel=bool(flags & _KERNEL_THREAD),
            bound=bool(flags & _BOUND),
            nice=int(fields[16]),
            cpu_ticks=int(fields[11]) + int(fields[12]),
            processor=int(fields[36]) if len(fields) > 36 else -1,  # noqa: PLR2004
        )
    except (IndexError, ValueError):
        return None


def read_allowed(files: FileTree, number: int | str) -> str | None:
    """Return the CPUs a task may run on, as a list; None if it is gone."""
    for line in files.read(f"proc/{number}/status").text.splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return value.strip()
    return None
