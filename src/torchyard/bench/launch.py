"""The processes of one launch: how they are started, and how they run the workload.

A launch is a set of fresh processes, one per target and environment. Variants that differ only in
backend or precision share a process, the model object and the inputs. The controller alone
coordinates: no worker waits for another, and only one variant computes at a time. Any failure of a
variant is raised as VariantFailed, with its phase.

The number of threads is fixed in the environment before torch is imported:
`torch.set_num_threads(1)` alone was seen to leave a second busy BLAS thread. With a paired layout,
kernel address randomization is off and Torchyard draws the start positions itself, the same for all
variants of a launch and new for each launch: effects of the layout that variants share cancel in
the pair.

Several instances of a variant answer as one: their blocks start together, and an iteration takes
the time in which all of them together complete one. Results are checked in the first instance,
since all are built alike.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from torchyard.core.comparison import Failure
from torchyard.core.cpu_lists import cpu_list
from torchyard.core.records import encode
from torchyard.core.study import Environment, MeasureSettings, Variant, Workload
from torchyard.errors import TorchyardError, WorkerFailed
from torchyard.machine.system.cores import available_cores, check_instances, cores_of
from torchyard.process.ending import WorkerTrouble
from torchyard.process.start import LaunchSpec
from torchyard.process.worker_process import WorkerGroup, WorkerProcess
from torchyard.worker.bench.backend_names import is_user_function
from torchyard.worker.placement import CORES, MEMORY
from torchyard.worker.wire import PROTOCOL

_PAD_NAME = "TORCHYARD_PAD"
_MAX_PAD = 4096
_MAX_PAGES = 4096
_MAX_HEAP_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class LaunchDraw:
    """What chance decides for a launch, alike for all of its processes."""

    pad: int
    pages: int
    heap_bytes: int
    hash_seed: int


def draw_launch(chance: random.Random) -> LaunchDraw:
    """Stack offset, mapping offset, heap offset and the seed of Python's hashes."""
    return LaunchDraw(
        pad=chance.randrange(0, _MAX_PAD, 16),
        pages=chance.randrange(1, _MAX_PAGES),
        heap_bytes=chance.randrange(64, _MAX_HEAP_BYTES, 16),
        hash_seed=chance.randrange(1, 2**32),
    )


def threads_of(variant: Variant, settings: MeasureSettings) -> int:
    """Intra-op threads: the environment's, else the study's, else one for every core of a process."""
    environment = variant.environment
    if environment.instances > 1:  # the study's number is for one process
        return environment.threads or len(cores_of(environment)[0])
    return environment.threads or settings.threads or len(cores_of(environment)[0])


def launch_specs(
    groups: dict[tuple[str, str], list[Variant]],
    settings: MeasureSettings,
    draw: LaunchDraw,
    cache: Path,
    working_folder: Path,
) -> dict[tuple[str, str], list[LaunchSpec]]:
    """One specification per process, padded so that all environments have one size.

    A key has as many as its environment has instances.
    """
    paired = settings.paired_layout and len(groups) > 1
    variables = {
        key: _variables(variants[0], settings, draw, cache.joinpath(*key))
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
        specs[key] = [_placed(one, variant.environment, part) for part in _parts(variant)]
    return specs


def _parts(variant: Variant) -> range:
    return range(variant.environment.instances)


def _placed(spec: LaunchSpec, environment: Environment, part: int) -> LaunchSpec:
    """The specification of one instance, on its own cores."""
    if environment.instances == 1:
        return spec
    placed = dict(spec.variables) | _placement(environment, part)
    return replace(spec, name=f"{spec.name}-{part + 1}", variables=tuple(placed.items()))


def _placement(environment: Environment, part: int = 0) -> dict[str, str]:
    found = {}
    if environment.instances > 1 or environment.cores:
        found[CORES] = cpu_list(cores_of(environment)[part])
    if environment.memory:
        found[MEMORY] = environment.memory
    return found


def _variables(
    variant: Variant, settings: MeasureSettings, draw: LaunchDraw, cache: Path
) -> tuple[tuple[str, str], ...]:
    threads = str(threads_of(variant, settings))
    found = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "PYTHONHASHSEED": str(draw.hash_seed),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    found.update(variant.target.variables)
    found.update(variant.environment.variables)
    found.update(_placement(variant.environment))
    return tuple(sorted(found.items()))


def _size_bytes(variant: Variant, variables: tuple[tuple[str, str], ...]) -> int:
    """Bytes that the process's stack starts with and that differ between sides."""
    named = sum(len(name) + len(value) + 2 for name, value in variables)
    preload = ""
    if variant.environment.preload:
        names = [str(Path(library).absolute()) for library in variant.environment.preload]
        others = [value for name, value in variables if name == "LD_PRELOAD" and value]
        preload = ":".join(names) + (":" if others else "LD_PRELOAD==")
    return named + 2 * len(_path_of(variant.target.python)) + len(preload)


def _path_of(python: str) -> str:
    """The interpreter as it is started: its path stands twice on the stack."""
    if "/" in python:
        return str(Path(python).expanduser().absolute())
    return shutil.which(python) or python


_OF_THE_FIRST: Final = frozenset(
    {"reference", "judge", "verify", "recheck", "operators", "list", "peak"}
)
_ONE_BY_ONE: Final = frozenset({"build", "measure"})
"""The first one to be built may write the weights that the others load; memory is not shared."""


class Fleet:
    """Asks one worker, or all instances."""

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self._workers = tuple(workers)

    @property
    def is_alive(self) -> bool:
        """Whether all of them run."""
        return all(worker.is_alive for worker in self._workers)

    def kill(self) -> None:
        """End all of them at once."""
        for worker in self._workers:
            worker.kill()

    def ask(self, verb: str, *, limit_s: float, **fields: object) -> dict[str, Any]:
        """The answer of all as one; the trouble of any of them is raised."""
        first, *others = self._workers
        if not others or verb in _OF_THE_FIRST:
            return first.ask(verb, limit_s=limit_s, on_note=None, **fields)

        def ask(worker: WorkerProcess) -> dict[str, Any]:
            return worker.ask(verb, limit_s=limit_s, on_note=None, **fields)

        if verb in _ONE_BY_ONE:
            answers = [ask(worker) for worker in self._workers]
        else:
            answers = self._at_once(ask)
        return together(verb, answers)

    def _at_once(self, ask: Callable[[WorkerProcess], dict[str, Any]]) -> list[dict[str, Any]]:
        """In threads that are not waited for when one is in trouble: the crew ends the workers."""
        threads = ThreadPoolExecutor(max_workers=len(self._workers))
        try:
            return [one.result() for one in [threads.submit(ask, each) for each in self._workers]]
        finally:
            threads.shutdown(wait=False)


def together(verb: str, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What instances said, as the answer of one side."""
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


ProcessKey = tuple[str, str]

BUILT_SIDE_BY_SIDE: Final = frozenset({"kernels", "models", "huggingface", "timm", "torchvision"})
"""Suites whose models are made in memory alone. A program of somebody else may also fetch or unpack
files: its processes are built one after the other, so that the first one does it."""


class VariantFailed(WorkerFailed):
    """One variant gave no number: why, in which phase, and whether its process still lives."""

    def __init__(self, failure: Failure, *, process_alive: bool) -> None:
        super().__init__(failure.message, hint=failure.hint, log=failure.log)
        self.failure = failure
        self.process_alive = process_alive
        self.suspects: tuple[str, ...] = ()
        """Others whose code ran in the process before it died, the last one first."""


class Crew:
    """The processes of one launch. Use as a context manager: nothing outlives it."""

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
    ) -> None:
        """Compilers keep what they made in `cache`; among the scratch when there is none."""
        self.workload = workload
        self.variants = tuple(variants)
        self.settings = settings
        self.hellos: dict[ProcessKey, dict[str, Any]] = {}
        self.built: dict[ProcessKey, dict[str, Any]] = {}
        self.has_reference = False
        """Whether the one process keeps what candidates are judged by."""
        self._groups: dict[ProcessKey, list[Variant]] = {}
        for variant in variants:
            self._groups.setdefault(variant.process_key, []).append(variant)
        self._draw = draw
        self._log_folder = log_folder
        self._scratch = scratch.absolute()  # the workers have another working folder
        self._cache = self._scratch / "cache" if cache is None else cache.absolute()
        self._workers = WorkerGroup()
        self._by_key: dict[ProcessKey, Fleet] = {}
        self._ran: dict[ProcessKey, list[str]] = {}
        """Who ran in each process, the last one first."""

    def __enter__(self) -> Self:
        try:
            self._start()
            self._build()
        except BaseException:
            self._workers.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.kill()

    @property
    def several_processes(self) -> bool:
        """Whether the variants needed more than one process."""
        return len(self._by_key) > 1

    def one_variant_per_process(self) -> list[Variant]:
        """A speaker for each process."""
        return [variants[0] for variants in self._groups.values()]

    def ask(
        self, who: Variant, verb: str, *, phase: str, limit_s: float, **fields: object
    ) -> dict[str, Any]:
        """Ask the variant's process; trouble is attributed to this variant."""
        fleet = self._by_key[who.process_key]
        if phase not in ("start", "build"):
            self._ran[who.process_key] = [
                who.name,
                *(name for name in self._ran.get(who.process_key, []) if name != who.name),
            ]
        try:
            return fleet.ask(verb, limit_s=limit_s, **fields)
        except WorkerTrouble as trouble:
            failed = _failed(who, phase, trouble, alive=fleet.is_alive)
            if not fleet.is_alive:
                failed.suspects = self._suspects(who, phase)
            raise failed from trouble

    def _suspects(self, who: Variant, phase: str) -> tuple[str, ...]:
        """Others whose code ran in the process: calls, the last one first, or imports at building."""
        names = self._ran.get(who.process_key, [])
        if phase == "build":
            names = [
                one.name for one in self._groups[who.process_key] if is_user_function(one.backend)
            ]
        return tuple(name for name in names if name != who.name)

    def dismiss(self, who: Variant) -> None:
        """Go on without a side that cannot be made; a process that has no other is ended."""
        self.variants = tuple(one for one in self.variants if one.name != who.name)
        left = [one for one in self._groups[who.process_key] if one.name != who.name]
        if left:
            self._groups[who.process_key] = left
        else:
            del self._groups[who.process_key]
            self._by_key[who.process_key].kill()

    def _start(self) -> None:
        """Start all processes first, so that their imports run side by side."""
        specs = launch_specs(self._groups, self.settings, self._draw, self._cache, self._scratch)
        for key, instances in specs.items():
            variant = self._groups[key][0]
            try:
                check_instances(variant.environment)
                self._by_key[key] = Fleet(
                    [
                        self._workers.start(spec, log_path=self._log_folder / f"{spec.name}.log")
                        for spec in instances
                    ]
                )
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
                        message=f"the worker speaks protocol {hello.get('protocol')!r}",
                        hint="reinstall Torchyard: its two halves belong to one version",
                    ),
                    process_alive=True,
                )
            self.hellos[key] = hello

    def _build(self) -> None:
        """Build side by side, one process a core at most, where none needs what another one makes.

        Of several targets, the first one writes the weights that the others load.
        """
        targets = {key[0] for key in self._groups}
        state = str(self._scratch / "state.pt") if len(targets) > 1 else None

        def build(key: ProcessKey) -> dict[str, Any]:
            return self._build_process(self._groups[key], state)

        alone = state is not None or self.workload.suite not in BUILT_SIDE_BY_SIDE
        most = 1 if alone else min(len(self._groups), available_cores())
        threads = ThreadPoolExecutor(max_workers=most)
        try:
            asked = {key: threads.submit(build, key) for key in self._groups}
            self.built = {key: answer.result() for key, answer in asked.items()}
        finally:
            # Not waited for when one is in trouble: the workers are ended then.
            threads.shutdown(wait=False, cancel_futures=True)

    def _build_process(self, variants: Sequence[Variant], state: str | None) -> dict[str, Any]:
        return self.ask(
            variants[0],
            "build",
            phase="build",
            limit_s=self.settings.step_limit_s,
            workload=encode(self.workload),
            variants=[
                {
                    "name": v.name,
                    "backend": v.backend,
                    "precision": v.precision,
                    "options": [list(option) for option in v.options],
                }
                for v in variants
            ],
            seed=self.settings.seed,
            state=state,
        )


def _failed(variant: Variant, phase: str, error: TorchyardError, *, alive: bool) -> VariantFailed:
    kind = error.kind if isinstance(error, WorkerTrouble) else "no-start"
    tail = ""
    if isinstance(error, WorkerTrouble):
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
