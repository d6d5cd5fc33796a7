"""A study: variants, workloads, the requested precision and the time budget.

A variant is one way to run a workload: target, backend, precision and environment. "eager against
inductor", "build A against build B", "glibc against tcmalloc" and "float32 against bfloat16" are
all one variant compared with another. No I/O, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

Mode = Literal["inference", "training"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Suite, name, mode, device, batch size, and the parameters the suite understands."""

    suite: str
    name: str
    mode: Mode = "inference"
    device: str = "cpu"
    batch_size: int | None = None
    optimizer_step: bool = False
    parameters: tuple[tuple[str, int | float | str | bool], ...] = ()

    @property
    def label(self) -> str:
        """What tables call it: `kernels/matmul inference`, with what differs from the default."""
        text = f"{self.suite}/{self.name} {self.mode}"
        if self.optimizer_step:
            text += " +step"
        if self.batch_size is not None:
            text += f" b{self.batch_size}"
        if self.device != "cpu":
            text += f" {self.device}"
        for key, value in self.parameters:
            text += f" {key}={value}"
        return text


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


Reseat = Literal["auto", "pages", "heap", "off"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When a comparison may stop."""

    time_s: float = 60.0
    """Measuring time: wall time after the first launch is ready."""
    precision_goal: float = 0.01
    """Half-width of the interval that is wanted; 0 means use the whole time."""
    margin: float = 0.01
    """Differences proven smaller than this are called the same."""
    alpha: float = 0.05
    min_launches: int = 3
    max_launches: int = 60
    launch_s: float | None = None
    """How long a launch measures; None leaves it to the pace, which weighs starting against noise."""


@dataclass(frozen=True, kw_only=True)
class MeasureSettings:
    """How blocks are taken and what a worker may use."""

    block_s: float = 0.1
    threads: int | None = None
    seed: int = 1337
    reseat: Reseat = "auto"
    paired_layout: bool = True
    """Start both sides of a launch with one layout, drawn anew for each launch."""
    flush_l2: bool = False
    check_accuracy: bool = True
    memory_limit_bytes: int | None = None
    start_limit_s: float = 120.0
    """For the import of torch and the handshake."""
    step_limit_s: float = 600.0
    """For building, checking, compiling and warming up."""
    block_limit_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything a run is asked to do."""

    name: str
    baseline: Variant
    candidates: tuple[Variant, ...]
    workloads: tuple[Workload, ...]
    budget: Budget = field(default_factory=Budget)
    settings: MeasureSettings = field(default_factory=MeasureSettings)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Baseline first."""
        return (self.baseline, *self.candidates)
