"""The crew of one launch: a fresh process per target and environment, with the workload built.

Variants that differ only in backend or precision share a process, the model object and the inputs.
The yard alone coordinates: no worker waits for another, and only one side computes at a time. Whatever
goes wrong with a variant comes out as VariantFailed, with the phase it happened in.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

from torchyard.core.comparison import Failure
from torchyard.core.records import encode
from torchyard.core.study import MeasureSettings
from torchyard.core.variant import Variant
from torchyard.core.workload import Workload
from torchyard.errors import TorchyardError, WorkerFailed
from torchyard.machine.own_cores import available_cores, check_instances
from torchyard.measure.fleet import Fleet
from torchyard.measure.starting import LaunchDraw, launch_specs
from torchyard.process.group import WorkerGroup
from torchyard.process.trouble import WorkerTrouble
from torchyard.worker.backend_names import is_user_function
from torchyard.worker.wire import PROTOCOL

__all__ = ["Crew", "VariantFailed"]

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
