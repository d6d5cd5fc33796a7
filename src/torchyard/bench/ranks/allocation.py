"""The nodes of the Slurm allocation that this process runs in."""

from __future__ import annotations

import os
import shutil
import subprocess

from torchyard.errors import UsageError
from torchyard.process.programs import capture

_LIMIT_S = 30.0


def allocated_nodes(count: int) -> tuple[str, ...]:
    """Return the names of `count` nodes of the allocation, this one first. Raises UsageError."""
    names = os.environ.get("SLURM_JOB_NODELIST", "")
    here = os.environ.get("SLURMD_NODENAME", "")
    if not names or not here:
        raise UsageError(
            f"{count} nodes need a Slurm allocation, and this process does not run on a node of one",
            hint=f"submit it: sbatch --nodes={count} --wrap 'torchyard bench ...', or a sweep with "
            "--executor slurm",
        )
    others = [name for name in _expanded(names) if name != here]
    if len(others) < count - 1:
        raise UsageError(
            f"the Slurm allocation has {len(others) + 1} nodes, and {count} are requested",
            hint=f"request --nodes={count} from Slurm, or use fewer nodes",
        )
    return (here, *others[: count - 1])


def _expanded(names: str) -> list[str]:
    """Return the names of a list such as `node[1-3,7]`."""
    program = shutil.which("scontrol")
    if program is None:
        raise UsageError(
            "there is no scontrol on this node, which lists the nodes of an allocation",
            hint="install Slurm's programs on the compute nodes",
        )
    try:
        done = capture([program, "show", "hostnames", names], limit_s=_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError("scontrol does not list the nodes", why=str(error)) from error
    return done.stdout.split()
