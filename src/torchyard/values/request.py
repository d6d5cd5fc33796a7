"""What a profile is asked for: the program, the target, and how to look at it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchyard.core.variant import DEFAULT_ENVIRONMENT, Environment, Target
from torchyard.core.workload import Workload

__all__ = ["ProfileRequest", "WatchOptions"]


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """How the worker looks at values; the fields of the worker's `Options`."""

    deep: bool = False
    every: int = 1
    first_steps: int = 0
    close_steps: int = 3
    last_step: int = 0
    least_bytes: int = 4096
    most_bytes: int = 0
    memory_bytes: int = 256 << 20
    device_memory_bytes: int = 4 << 30
    prove: bool = True
    graph: bool = True
    approximate: bool = False


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """A program, or a workload of a suite, in a target."""

    target: Target
    environment: Environment = DEFAULT_ENVIRONMENT
    program: tuple[str, ...] = ()
    """`SCRIPT ARGUMENTS...` or `-m MODULE ARGUMENTS...`; empty for a workload."""
    workload: Workload | None = None
    steps: int = 4
    """Of a workload."""
    precision: str = "float32"
    eager: bool = False
    """Turn torch.compile off, and profile the eager program."""
    options: WatchOptions = field(default_factory=WatchOptions)
    quiet_program: bool = False
    """Send what the program prints on stdout to stderr, so that stdout is ours."""
