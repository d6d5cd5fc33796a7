"""A variant: one way to run a workload. Target + backend + precision + environment.

"eager against inductor", "build A against build B", "glibc against tcmalloc" and "float32
against bfloat16" are all variant against variant. No I/O, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

__all__ = [
    "DEFAULT_ENVIRONMENT",
    "PRECISIONS",
    "Environment",
    "Precision",
    "Scalar",
    "Target",
    "Variant",
]

Scalar = int | float | str | bool
Precision = Literal["float32", "float16", "bfloat16", "amp"]
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
_LONG_BLOCKTIME_MS: Final = 1


@dataclass(frozen=True, kw_only=True)
class Target:
    """An interpreter with a torch in it, and the variables that belong to it."""

    name: str
    python: str
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What a process is started with besides its target: variables, preloads, threads, places."""

    name: str
    variables: tuple[tuple[str, str], ...] = ()
    preload: tuple[str, ...] = ()
    threads: int | None = None
    """Of each process; without it, one for each core that the process may use."""
    cores: str = ""
    """Processors that it may use, such as `0-3,8`; empty: all that Torchyard may."""
    memory: str = ""
    """NUMA nodes that its memory comes from: `bind:0`, or `interleave:0-1`."""
    instances: int = 1
    """Processes that do the same side by side, each with its part of the cores. What counts is then
    how many iterations all of them do in a time."""

    @property
    def spins(self) -> bool:
        """Whether idle threads of OpenMP keep their cores busy for long."""
        said = {name: value.strip().lower() for name, value in self.variables}
        blocktime = said.get("KMP_BLOCKTIME", "")
        return (
            said.get("OMP_WAIT_POLICY") == "active"
            or "GOMP_SPINCOUNT" in said
            or blocktime == "infinite"
            or (blocktime.isdecimal() and int(blocktime) > _LONG_BLOCKTIME_MS)
        )

    def touches_allocator(self) -> bool:
        """Whether the environment may change where memory comes from."""
        marks = ("MALLOC", "TCMALLOC", "MIMALLOC", "THP_MEM", "GLIBC_TUNABLES", "LD_PRELOAD")
        return bool(self.preload) or any(
            name.startswith(marks) or "ALLOC_CONF" in name for name, _ in self.variables
        )


DEFAULT_ENVIRONMENT: Final = Environment(name="default")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to run a workload."""

    name: str
    target: Target
    backend: str = "eager"
    precision: Precision = "float32"
    environment: Environment = field(default=DEFAULT_ENVIRONMENT)
    options: tuple[tuple[str, Scalar], ...] = ()
    """What is set inside the process for this variant alone, sorted by name: `channels-last`,
    `dynamic`, `inference-mode`, `matmul-precision`, `inductor.NAME`, ... The worker knows them all."""

    @property
    def process_key(self) -> tuple[str, str]:
        """Variants with one key can share a process, the model object and the inputs."""
        return (self.target.name, self.environment.name)
