"""Cores set apart with control groups of version 2: a partition.

A partition takes its processors away from every other group, so nobody has to be moved. `root`
keeps load balancing among the cores, which threads of OpenMP need; `isolated` has none: threads
stay where they are put, and pile up on one core unless each one is pinned.
"""

from __future__ import annotations

from typing import Final, Literal

from torchyard.core.processor_lists import cpu_list
from torchyard.errors import NotAllowed, TorchyardError
from torchyard.machine.cpusets import Cpusets
from torchyard.machine.file_tree import FileTree
from torchyard.machine.set_apart import MEASURE, take_down

__all__ = [
    "PartitionKind",
    "make_partition",
    "read_partition",
    "remove_partition",
    "why_no_partition",
]

PartitionKind = Literal["root", "isolated"]

_PARTITION: Final = "cpuset.cpus.partition"


def why_no_partition(files: FileTree, base: str) -> str:
    """Why there can be none in a group; empty when nothing is known against it."""
    # The topmost group has no such file, and can always be divided.
    own = files.read(f"{base}/{_PARTITION}").value
    if own is not None and own.split()[:1] not in (["root"], ["isolated"]):
        return (
            f"/{base} is no partition itself ({own}): in a container, only the machine around "
            "it can set cores apart"
        )
    children = files.paths(f"{base}/*/cpuset.cpus")
    if children and not files.paths(f"{base}/*/{_PARTITION}"):
        return "this kernel has no partitions (Linux 5.0 has)"
    return ""


def make_partition(
    files: FileTree, cpusets: Cpusets, ours: str, kind: str, cores: tuple[int, ...]
) -> None:
    """Make the partition; takes it down again when the kernel does not make it a valid one."""
    try:
        files.make_folder(ours)
        files.write(f"{ours}/cpuset.cpus", cpu_list(cores))
        files.write(f"{ours}/{_PARTITION}", kind)
        said = files.read(f"{ours}/{_PARTITION}").value or ""
        if said != kind:
            raise NotAllowed(f"the kernel makes no partition of cores {cpu_list(cores)}: {said}")
        # systemd switches controllers off in the topmost group that none of its units needs. The
        # kernel refuses that while a group below has passed the controller on.
        files.write(f"{ours}/cgroup.subtree_control", "+cpuset")
        files.make_folder(f"{ours}/{MEASURE}")
    except TorchyardError:
        remove_partition(files, cpusets, ours)
        raise


def read_partition(files: FileTree, ours: str) -> str:
    """`root 2-3`."""
    said = files.read(f"{ours}/{_PARTITION}").value or "no partition"
    return f"{said} {files.read(f'{ours}/cpuset.cpus').value or 'without cores'}"


def remove_partition(files: FileTree, cpusets: Cpusets, ours: str) -> None:
    """Give the processors back to everybody and remove our groups."""
    if files.exists(f"{ours}/{_PARTITION}"):
        files.write(f"{ours}/{_PARTITION}", "member")
    take_down(files, cpusets, ours)
