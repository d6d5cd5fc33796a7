"""A study: variants, workloads, the requested precision and the time budget.

A variant is one way to run a workload: target, backend, precision and environment. "eager against
inductor", "build A against build B", "glibc against tcmalloc" and "float32 against bfloat16" are
all one variant compared with another. No I/O, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

Mode = Literal["inference", "training", "prefill", "decode"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
PHASES: Final[tuple[Mode, ...]] = ("prefill", "decode")
"""The phases of text generation: read the prompt, generate one token."""
ModeName = Literal["inference", "training", "generate", "prefill", "decode"]
"""A mode, or `generate` for both phases."""
MODE_NAMES: Final[tuple[ModeName, ...]] = get_args(ModeName)


def modes_named(names: Iterable[ModeName]) -> tuple[Mode, ...]:
    """Return the modes without duplicates, in the given order, with the phases for `generate`."""
    modes = [mode for name in names for mode in (PHASES if name == "generate" else (name,))]
    return tuple(dict.fromkeys(modes))


DEFAULT_NAME: Final = "bench"
"""Name of a study without a name of its own."""
FILE_SUITE: Final = "file"
"""The suite of workloads in Python files of the user."""

SCRIPT_SUITE: Final = "steps"
"""The suite of training scripts, which are timed between their steps."""
SCRIPT_FOLDER: Final = "folder"
"""Parameter of a training script: the folder that it runs in. Not part of the label."""

COMMAND_SUITE: Final = "command"
"""The suite of whole programs; the name of its workload is the command of the baseline."""


def split_user_file(text: str) -> tuple[str, str]:
    """Split `path.py:name` into path and name; the name is optional, and paths may contain colons."""
    path, _, name = text.rpartition(":")
    return (path, name) if path.endswith(".py") and not text.endswith(".py") else (text, "")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Suite, name, mode, device, batch size, and the parameters of the suite."""

    suite: str
    name: str
    mode: Mode = "inference"
    device: str = "cpu"
    batch_size: int | None = None
    optimizer_step: bool = False
    eval_mode: bool = False
    """Whether modules are in evaluation mode during training: no dropout, fixed statistics of norms."""
    ranks: int = 1
    """Processes of one process group, each with its own batch; the slowest one counts."""
    nodes: int = 1
    """Nodes of the Slurm allocation that the ranks are spread over, the same number on each."""
    parameters: tuple[tuple[str, int | float | str | bool], ...] = ()

    @property
    def ranks_per_node(self) -> int:
        """The number of ranks on each node."""
        return self.ranks // self.nodes

    @property
    def label(self) -> str:
        """The name in tables: `kernels/matmul inference`, followed by non-default settings."""
        text = f"{self.suite}/{self.name}"
        if self.suite != COMMAND_SUITE:
            text += f" {self.mode}"
        if self.optimizer_step:
            text += " +step"
        if self.eval_mode:
            text += " eval-mode"
        if self.batch_size is not None:
            text += f" b{self.batch_size}"
        if self.device != "cpu":
            text += f" {self.device}"
        if self.ranks > 1:
            text += f" ranks={self.ranks}"
        if self.nodes > 1:
            text += f" nodes={self.nodes}"
        for key, value in self.parameters:
            if self.suite == SCRIPT_SUITE and key == SCRIPT_FOLDER:
                continue
            text += f" {key}={value}"
        return text


Scalar = int | float | str | bool
Precision = Literal["float32", "float16", "bfloat16", "amp"]
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
_LONG_BLOCKTIME_MS: Final = 1


@dataclass(frozen=True, kw_only=True)
class Target:
    """A Python interpreter with torch, and its environment variables."""

    name: str
    python: str
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Settings of a process besides its target: variables, preloads, threads, CPU and memory affinity."""

    name: str
    variables: tuple[tuple[str, str], ...] = ()
    preload: tuple[str, ...] = ()
    threads: int | None = None
    """Threads of each process; by default one for each core that the process may use."""
    cores: str = ""
    """CPUs that it may use, such as `0-3,8`; by default all that Torchyard may use."""
    memory: str = ""
    """NUMA memory policy: `bind:0`, or `interleave:0-1`."""
    instances: int = 1
    """Processes that run concurrently, each with its share of the cores. The measure is then their
    combined throughput."""

    @property
    def spins(self) -> bool:
        """Whether idle OpenMP threads spin for a long time."""
        variables = {name: value.strip().lower() for name, value in self.variables}
        blocktime = variables.get("KMP_BLOCKTIME", "")
        return (
            variables.get("OMP_WAIT_POLICY") == "active"
            or "GOMP_SPINCOUNT" in variables
            or blocktime == "infinite"
            or (blocktime.isdecimal() and int(blocktime) > _LONG_BLOCKTIME_MS)
        )

    def touches_allocator(self) -> bool:
        """Whether the environment may change the memory allocator."""
        prefixes = ("MALLOC", "TCMALLOC", "MIMALLOC", "THP_MEM", "GLIBC_TUNABLES", "LD_PRELOAD")
        return bool(self.preload) or any(
            name.startswith(prefixes) or "ALLOC_CONF" in name for name, _ in self.variables
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
    """Options of this variant inside its process, sorted by name: `channels-last`, `dynamic`,
    `inference-mode`, `matmul-precision`, `inductor.NAME`, ... (see `worker.bench.options`)."""
    file: str = ""
    """FILE.py or FILE.py:NAME whose module replaces that of the workload, on the same inputs."""

    @property
    def process_key(self) -> tuple[str, str]:
        """Key of the process; variants with the same key can share process, model and inputs."""
        return (self.target.name, self.environment.name)


RelocationMethod = Literal["auto", "pages", "heap", "off"]
StartMethod = Literal["auto", "fork", "fresh"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When a comparison may stop."""

    time_s: float = 60.0
    """Measuring time: wall time after the first launch is ready."""
    precision_goal: float = 0.01
    """Requested half-width of the confidence interval; 0 means use the whole time."""
    margin: float = 0.01
    """Equivalence margin: differences shown to be smaller are reported as `same`."""
    alpha: float = 0.05
    min_launches: int = 2
    max_launches: int = 60
    launch_s: float | None = None
    """Measuring time of a launch; None chooses it from start-up cost and noise."""


@dataclass(frozen=True, kw_only=True)
class MeasureSettings:
    """How blocks are measured, and the limits of a worker."""

    block_s: float = 0.1
    threads: int | None = None
    seed: int = 1337
    reseat: RelocationMethod = "auto"
    paired_layout: bool = True
    """Start both variants of a launch with the same memory layout, randomised for each launch."""
    start: StartMethod = "auto"
    """How processes start: forked from a template process that has imported torch, or `fresh`;
    `auto` forks where that is safe."""
    flush_l2: bool = False
    check_accuracy: bool = True
    memory_limit_bytes: int | None = None
    start_limit_s: float = 120.0
    """Time limit of the import of torch and the handshake."""
    step_limit_s: float = 600.0
    """Time limit of building, checking, compiling and warming up, each."""
    block_limit_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Study:
    """A request for a run: variants, workloads, budget and settings."""

    name: str
    baseline: Variant
    candidates: tuple[Variant, ...]
    workloads: tuple[Workload, ...]
    budget: Budget = field(default_factory=Budget)
    settings: MeasureSettings = field(default_factory=MeasureSettings)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """All variants, baseline first."""
        return (self.baseline, *self.candidates)
