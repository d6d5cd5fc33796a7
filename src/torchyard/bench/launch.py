"""The processes of one launch: how they are started, and how they run the workload.

A launch is a set of new processes, one per target and environment. Variants that differ only in
backend or precision share a process, the model object and the inputs. Only the
controller coordinates: no worker waits for another, and only one variant computes at a time. Any
failure of a variant is raised as VariantFailed, with its phase.

The number of threads is fixed in the environment before torch is imported:
`torch.set_num_threads(1)` alone can leave a second busy BLAS thread. With a paired layout, address
space randomization of the kernel is off, and Torchyard draws the offsets itself: the same for all
variants of a launch and new for each launch, so that shared effects of the layout cancel in the pair.

Several instances of a variant act as one worker: their blocks start together, and the time of an
iteration is the inverse of their combined rate. Results are checked in the first instance, because
all are built in the same way. Several ranks of a workload are one process group (`bench.ranks`), on
one node or, under Slurm, on several.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from torchyard.bench.launch_templates import LaunchTemplates, ProcessKey, modules_of
from torchyard.bench.ranks import RankGroup, allocated_nodes
from torchyard.bench.timeline import EXIT, START, TEMPLATES, Timeline
from torchyard.core.comparison import Failure
from torchyard.core.cpu_lists import cpu_list
from torchyard.core.records import encode
from torchyard.core.study import SCRIPT_SUITE, Environment, MeasureSettings, Variant, Workload
from torchyard.core.units import format_duration
from torchyard.errors import TorchyardError, WorkerFailed
from torchyard.machine.system.cores import available_cores, check_instances, cores_of
from torchyard.process.ending import WorkerFailure
from torchyard.process.nodes import NodePlace
from torchyard.process.start import LaunchSpec
from torchyard.process.worker_process import WorkerGroup, WorkerProcess, WorkersAsOne
from torchyard.worker.bench.backend_names import is_user_function
from torchyard.worker.placement import CORES, MEMORY
from torchyard.worker.wire import PROTOCOL

_PAD_NAME = "TORCHYARD_PAD"
_MAX_PAD = 4096
_MAX_PAGES = 4096
_MAX_HEAP_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class LaunchDraw:
    """Random choices of a launch, shared by all of its processes."""

    pad: int
    pages: int
    heap_bytes: int
    hash_seed: int


def draw_launch(chance: random.Random) -> LaunchDraw:
    """Draw the stack, mapping and heap offsets and the seed of Python's hashes."""
    return LaunchDraw(
        pad=chance.randrange(0, _MAX_PAD, 16),
        pages=chance.randrange(1, _MAX_PAGES),
        heap_bytes=chance.randrange(64, _MAX_HEAP_BYTES, 16),
        hash_seed=chance.randrange(1, 2**32),
    )


def threads_of(variant: Variant, settings: MeasureSettings, ranks: int = 1) -> int:
    """Return the intra-op threads of a process: of the environment, else of the study, else one per core.

    `ranks` is the number of ranks on this node.
    """
    environment = variant.environment
    if ranks > 1:
        return environment.threads or settings.threads or len(cores_of(environment, ranks)[0])
    if environment.instances > 1:  # the study's number applies to a single process
        return environment.threads or len(cores_of(environment)[0])
    return environment.threads or settings.threads or len(cores_of(environment)[0])


def launch_specs(
    groups: dict[tuple[str, str], list[Variant]],
    settings: MeasureSettings,
    draw: LaunchDraw,
    cache: Path,
    working_folder: Path,
    *,
    ranks: int = 1,
    nodes: int = 1,
) -> dict[tuple[str, str], list[LaunchSpec]]:
    """Return one specification per instance or rank of each process, padded so that all environments have one size."""
    paired = settings.paired_layout and len(groups) > 1
    variables = {
        key: _variables(variants[0], settings, draw, cache.joinpath(*key), ranks, nodes)
        for key, variants in groups.items()
    }
    sizes = {key: _size_bytes(variants[0], variables[key]) for key, variants in groups.items()}
    largest = max(sizes.values())
    specs: dict[tuple[str, str], list[LaunchSpec]] = {}
    for key, variants in groups.items():
        variant = variants[0]
        pad = draw.pad + largest - sizes[key] if paired else 0
        extra = ((_PAD_NAME, "." * pad),) if paired else ()
        one = LaunchSpec(
            name="+".join(key),
            python=variant.target.python,
            variables=(*variables[key], *extra),
            preload=variant.environment.preload,
            randomize_addresses=not paired,
            memory_limit_bytes=settings.memory_limit_bytes,
            start_limit_s=settings.start_limit_s,
            arguments=(f"--layout={draw.pages},{draw.heap_bytes}",) if paired else (),
            working_folder=str(working_folder),
            stopped_between=len(groups) > 1 and variant.environment.spins,
        )
        parts = range(variant.environment.instances * ranks)
        specs[key] = [_placed(one, variant.environment, part, ranks, nodes) for part in parts]
    return specs


def _placed(
    spec: LaunchSpec, environment: Environment, part: int, ranks: int, nodes: int
) -> LaunchSpec:
    """Return the specification of one instance or rank, on its own cores."""
    if environment.instances == 1 and ranks == 1:
        return spec
    here = ranks // nodes
    placed = dict(spec.variables) | _placement(
        environment, part if nodes == 1 else part % here, here
    )
    name = f"{spec.name}-{part + 1}" if ranks == 1 else f"{spec.name} rank {part}"
    return replace(spec, name=name, variables=tuple(placed.items()))


def _placement(environment: Environment, part: int = 0, ranks: int = 1) -> dict[str, str]:
    variables = {}
    if environment.instances * ranks > 1 or environment.cores:
        variables[CORES] = cpu_list(cores_of(environment, ranks)[part])
    if environment.memory:
        variables[MEMORY] = environment.memory
    return variables


def _variables(
    variant: Variant,
    settings: MeasureSettings,
    draw: LaunchDraw,
    cache: Path,
    ranks: int,
    nodes: int,
) -> tuple[tuple[str, str], ...]:
    threads = str(threads_of(variant, settings, ranks // nodes))
    variables = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "PYTHONHASHSEED": str(draw.hash_seed),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    if ranks > 1 and nodes == 1:
        variables["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks are on this machine
    variables.update(variant.target.variables)
    variables.update(variant.environment.variables)
    variables.update(_placement(variant.environment, ranks=ranks // nodes))
    return tuple(sorted(variables.items()))


def _size_bytes(variant: Variant, variables: tuple[tuple[str, str], ...]) -> int:
    """Return the bytes at the start of the process stack that differ between variants."""
    named = sum(len(name) + len(value) + 2 for name, value in variables)
    preload = ""
    if variant.environment.preload:
        names = [str(Path(library).absolute()) for library in variant.environment.preload]
        others = [value for name, value in variables if name == "LD_PRELOAD" and value]
        preload = ":".join(names) + (":" if others else "LD_PRELOAD==")
    return named + 2 * len(_path_of(variant.target.python)) + len(preload)


def _path_of(python: str) -> str:
    """Return the path of the interpreter, which is on the stack twice."""
    if "/" in python:
        return str(Path(python).expanduser().absolute())
    return shutil.which(python) or python


_FIRST_INSTANCE_ONLY: Final = frozenset(
    {"reference", "judge", "verify", "recheck", "operators", "list", "peak"}
)
_SEQUENTIAL: Final = frozenset({"build", "measure"})
"""The first instance built may write the weights that the others load; peak memory is measured alone."""


class InstanceGroup(WorkersAsOne):
    """The instances of one process key, which act as one worker."""

    def ask(self, verb: str, *, limit_s: float, **fields: object) -> dict[str, Any]:
        """Return the merged answer of all instances; raise the first failure."""
        first, *others = self._workers
        if not others or verb in _FIRST_INSTANCE_ONLY:
            return first.ask(verb, limit_s=limit_s, on_note=None, **fields)

        def ask(worker: WorkerProcess) -> dict[str, Any]:
            return worker.ask(verb, limit_s=limit_s, on_note=None, **fields)

        if verb in _SEQUENTIAL:
            answers = [ask(worker) for worker in self._workers]
        else:
            answers = self._in_parallel(ask)
        return merge_answers(verb, answers)

    def _in_parallel(self, ask: Callable[[WorkerProcess], dict[str, Any]]) -> list[dict[str, Any]]:
        """Send requests in parallel; threads are not joined after a failure, because the workers are killed."""
        threads = ThreadPoolExecutor(max_workers=len(self._workers))
        try:
            return [one.result() for one in [threads.submit(ask, each) for each in self._workers]]
        finally:
            threads.shutdown(wait=False)


def merge_answers(verb: str, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the answers of instances into the answer of one variant."""
    merged = dict(answers[0])
    if verb == "block":
        merged["samples_ns"] = [
            1.0 / sum(1.0 / max(float(sample), 1e-3) for sample in samples)
            for samples in zip(*(one["samples_ns"] for one in answers), strict=True)
        ]
        merged["started_ns"] = min(int(one["started_ns"]) for one in answers)
        merged["wall_ns"] = max(int(one["wall_ns"]) for one in answers)
    elif verb == "measure":
        sizes = [one.get("peak_memory_bytes") for one in answers]
        if all(isinstance(size, int) for size in sizes):
            merged["peak_memory_bytes"] = sum(size for size in sizes if isinstance(size, int))
    elif verb == "reseat":
        for name in ("moved_bytes", "held_bytes"):
            merged[name] = sum(int(one[name]) for one in answers)
    elif verb == "warm" and "iteration_ns" in merged:
        merged["iteration_ns"] = max(float(one["iteration_ns"]) for one in answers)
        merged["stable"] = all(one["stable"] for one in answers)
    return merged


BUILT_IN_PARALLEL: Final = frozenset({"kernels", "models", "huggingface", "timm", "torchvision"})
"""Suites that build models in memory only. Other programs may download or unpack files, so their
processes are built one after the other and only the first one does that."""


class VariantFailed(WorkerFailed):
    """Failure of one variant: reason, phase, and whether its process is still alive."""

    def __init__(self, failure: Failure, *, process_alive: bool) -> None:
        super().__init__(failure.message, hint=failure.hint, log=failure.log)
        self.failure = failure
        self.process_alive = process_alive
        self.suspects: tuple[str, ...] = ()
        """Other variants whose code ran in the process before it ended, most recent first."""


class LaunchProcesses:
    """The processes of one launch; a context manager that kills them at the end."""

    def __init__(
        self,
        workload: Workload,
        variants: Sequence[Variant],
        settings: MeasureSettings,
        *,
        draw: LaunchDraw,
        log_folder: Path,
        scratch: Path,
        cache: Path | None = None,
        templates: LaunchTemplates | None = None,
        number: int = 0,
        timeline: Timeline | None = None,
        compiled_before: bool = False,
    ) -> None:
        """`cache` is the folder of compiled artifacts; by default a folder in `scratch`.

        Processes are forked from `templates`, where given; `number` is that of the launch. Requests are
        recorded in the `timeline`. `compiled_before`: the artifacts of all variants are already in the
        cache.
        """
        self.workload = workload
        self.variants = tuple(variants)
        self.settings = settings
        self.hellos: dict[ProcessKey, dict[str, Any]] = {}
        self.built: dict[ProcessKey, dict[str, Any]] = {}
        self.has_reference = False
        """Whether the single process keeps the accuracy reference."""
        self._groups: dict[ProcessKey, list[Variant]] = {}
        for variant in variants:
            self._groups.setdefault(variant.process_key, []).append(variant)
        self._draw = draw
        self._log_folder = log_folder
        self._scratch = scratch.absolute()  # workers have a different working folder
        self._cache = self._scratch / "cache" if cache is None else cache.absolute()
        self._templates = templates
        self._number = number
        self._compiled_before = compiled_before
        self._timeline = Timeline() if timeline is None else timeline
        self.not_forked: dict[ProcessKey, str] = {}
        """Why processes were started by executing an interpreter; empty for forked ones."""
        self.template_s = 0.0
        """Time in which template processes were started, for all launches that are forked from them."""
        self._workers = WorkerGroup()
        self._by_key: dict[ProcessKey, InstanceGroup | RankGroup] = {}
        self._ran: dict[ProcessKey, list[str]] = {}
        """Names of variants that ran in each process, most recent first."""

    def __enter__(self) -> Self:
        try:
            with self._timeline.phase(START):
                self._start()
            self._build()
        except BaseException:
            self._workers.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._timeline.phase(EXIT):
            self._workers.kill()

    @property
    def cache(self) -> Path:
        """The folder of compiled artifacts."""
        return self._cache

    @property
    def several_processes(self) -> bool:
        """Whether the variants need more than one process."""
        return len(self._by_key) > 1

    def one_variant_per_process(self) -> list[Variant]:
        """Return one variant of each process."""
        return [variants[0] for variants in self._groups.values()]

    def ask(
        self,
        variant: Variant,
        verb: str,
        /,
        *,
        phase: str,
        limit_s: float | None = None,
        **fields: object,
    ) -> dict[str, Any]:
        """Send a request to the variant's process; attribute a failure to this variant.

        The default of `limit_s` is the limit of a step.
        """
        limit_s = self.settings.step_limit_s if limit_s is None else limit_s
        instances = self._by_key[variant.process_key]
        if phase not in ("start", "build"):
            self._ran[variant.process_key] = [
                variant.name,
                *(name for name in self._ran.get(variant.process_key, []) if name != variant.name),
            ]
        try:
            return self._timeline.ask(
                verb, variant.name, lambda: instances.ask(verb, limit_s=limit_s, **fields)
            )
        except WorkerFailure as trouble:
            failed = _failed(variant, phase, trouble, alive=instances.is_alive)
            if not instances.is_alive:
                failed.suspects = self._suspects(variant, phase)
            raise failed from trouble

    def _suspects(self, variant: Variant, phase: str) -> tuple[str, ...]:
        """Return other variants whose code ran in the process: calls, or imports while building."""
        names = self._ran.get(variant.process_key, [])
        if phase == "build":
            names = [
                one.name
                for one in self._groups[variant.process_key]
                if is_user_function(one.backend) or one.file
            ]
        return tuple(name for name in names if name != variant.name)

    def remove(self, variant: Variant) -> None:
        """Continue without a variant that cannot be built; kill its process if no other uses it."""
        self.variants = tuple(one for one in self.variants if one.name != variant.name)
        remaining = [one for one in self._groups[variant.process_key] if one.name != variant.name]
        if remaining:
            self._groups[variant.process_key] = remaining
        else:
            del self._groups[variant.process_key]
            self._by_key[variant.process_key].kill()

    def _start(self) -> None:
        """Start all processes first, so that their imports run in parallel."""

        def specs_of(draw: LaunchDraw) -> dict[ProcessKey, list[LaunchSpec]]:
            return launch_specs(
                self._groups,
                self.settings,
                draw,
                self._cache,
                self._scratch,
                ranks=self.workload.ranks,
                nodes=self.workload.nodes,
            )

        templates: dict[ProcessKey, list[Path | str]] = {}
        if self._templates is not None and self.workload.nodes == 1:
            modules = {key: modules_of(self.workload, group) for key, group in self._groups.items()}
            seed = self.settings.seed

            def template_specs(number: int) -> dict[ProcessKey, list[LaunchSpec]]:
                return specs_of(draw_launch(random.Random(f"{seed}/template/{number}")))

            began_s = time.monotonic()
            with self._timeline.phase(TEMPLATES):
                templates = self._templates.find(self._number, template_specs, modules)
            self.template_s = time.monotonic() - began_s
        for key, instances in specs_of(self._draw).items():
            variant = self._groups[key][0]
            try:
                check_instances(variant.environment, self.workload.ranks_per_node)
                places = self._places(variant.environment)
                workers = [
                    self._start_one(key, spec, templates.get(key, [])[part : part + 1], place)
                    for part, (spec, place) in enumerate(zip(instances, places, strict=True))
                ]
                self._by_key[key] = self._group(workers)
            except TorchyardError as error:
                raise _failed(variant, "start", error, alive=False) from error
        for key, variants in self._groups.items():
            hello = self.ask(
                variants[0], "hello", phase="start", limit_s=self.settings.start_limit_s
            )
            if hello.get("protocol") != PROTOCOL:
                raise VariantFailed(
                    Failure(
                        kind="protocol",
                        phase="start",
                        variant=variants[0].name,
                        message=f"the worker uses protocol {hello.get('protocol')!r} instead of {PROTOCOL!r}",
                        hint="reinstall Torchyard: controller and worker must have the same version",
                    ),
                    process_alive=True,
                )
            self.hellos[key] = hello

    def _group(self, workers: Sequence[WorkerProcess]) -> InstanceGroup | RankGroup:
        if self.workload.ranks == 1:
            return InstanceGroup(workers)
        self._scratch.mkdir(parents=True, exist_ok=True)
        rendezvous = Path(tempfile.mkdtemp(prefix="ranks-", dir=self._scratch))
        return RankGroup(workers, rendezvous=rendezvous, nodes=self.workload.nodes)

    def _places(self, environment: Environment) -> list[NodePlace | None]:
        """Return the node of each instance or rank; None is this node."""
        here = self.workload.ranks_per_node
        if self.workload.nodes == 1:
            return [None] * (environment.instances * here)
        _, *others = allocated_nodes(self.workload.nodes)
        places: list[NodePlace | None] = [None] * here
        for name in others:
            for part in range(here):
                own = -1 if environment.cores else part
                places.append(NodePlace(name=name, part=own, parts=here))
        return places

    def _start_one(
        self,
        key: ProcessKey,
        spec: LaunchSpec,
        template: Sequence[Path | str],
        place: NodePlace | None,
    ) -> WorkerProcess:
        log_path = self._log_folder / f"{spec.name.replace(' ', '-')}.log"
        if place is not None:
            return self._workers.start(spec, log_path=log_path, node=place)
        if self._templates is None or not template:
            return self._workers.start(spec, log_path=log_path)
        layout = f"--layout={self._draw.pages},{self._draw.heap_bytes}"
        forked = replace(spec, arguments=(layout,), stack_bytes=self._draw.pad)
        worker, self.not_forked[key] = self._templates.start(
            self._workers, spec, forked, template[0], log_path=log_path
        )
        return worker

    def _build(self) -> None:
        """Build in parallel, at most one process per core, unless processes depend on each other.

        Several ranks create their process group first.

        With several targets, the first one writes the weights that the others load.
        """
        targets = {key[0] for key in self._groups}
        state = str(self._scratch / "state.pt") if len(targets) > 1 else None

        def build(key: ProcessKey) -> dict[str, Any]:
            return self._build_process(self._groups[key], state)

        sequential = state is not None or self.workload.suite not in BUILT_IN_PARALLEL
        parallel = 1 if sequential else min(len(self._groups), available_cores())
        threads = ThreadPoolExecutor(max_workers=parallel)
        try:
            answers = {key: threads.submit(build, key) for key in self._groups}
            self.built = {key: answer.result() for key, answer in answers.items()}
        finally:
            # Not joined after a failure: the workers are killed then.
            threads.shutdown(wait=False, cancel_futures=True)

    def _build_process(self, variants: Sequence[Variant], state: str | None) -> dict[str, Any]:
        try:
            return self._ask_build(variants, state)
        except VariantFailed as failed:
            if self.workload.suite != SCRIPT_SUITE or failed.failure.kind != "timeout":
                raise
            limit = format_duration(self.settings.step_limit_s * 1e9)
            failure = replace(
                failed.failure,
                message=f"the script reached no step within {limit}",
                hint="name the function of a step with --step, or raise --step-limit",
            )
            raise VariantFailed(failure, process_alive=False) from failed

    def _ask_build(self, variants: Sequence[Variant], state: str | None) -> dict[str, Any]:
        if self.workload.ranks > 1:
            self.ask(
                variants[0],
                "join",
                phase="build",
                limit_s=self.settings.start_limit_s,
                device=self.workload.device,
            )
        return self.ask(
            variants[0],
            "build",
            phase="build",
            workload=encode(self.workload),
            variants=[
                {
                    "name": v.name,
                    "backend": v.backend,
                    "precision": v.precision,
                    "options": [list(option) for option in v.options],
                    "file": v.file,
                }
                for v in variants
            ],
            seed=self.settings.seed,
            state=state,
            compiled_before=self._compiled_before,
        )


def _failed(variant: Variant, phase: str, error: TorchyardError, *, alive: bool) -> VariantFailed:
    kind = error.kind if isinstance(error, WorkerFailure) else "no-start"
    tail = ""
    if isinstance(error, WorkerFailure):
        tail = error.traceback or error.log_tail
    failure = Failure(
        kind=kind,
        phase=phase,
        variant=variant.name,
        message=error.what if not error.why else f"{error.what}: {error.why}",
        hint=error.hint,
        log=error.log,
        log_tail=tail[-4000:],
    )
    return VariantFailed(failure, process_alive=alive)
